"use strict";
/** Calls that are made at once share requests, since most of what a call costs is its request. The first calls to a
 * server that are under way are sent as they are; further acquires that do not wait in the queue, extends and releases gather,
 * and are sent together as one POST /locks/batch when one that is under way is answered, or a few milliseconds later. For its caller a call
 * in a batch is like one that is sent alone: it has its own key, time limit and outcome. A caller that gives up leaves
 * the batch to the others, and what it was granted is ended when the batch is answered; the request is aborted when all
 * have left. A server, or a proxy, that refuses the batch as a whole is sent single requests for a minute. */
Object.defineProperty(exports, "__esModule", { value: true });
exports.Batcher = exports.operationOf = exports.ALONE = exports.BATCH_AFTER = void 0;
const clock_js_1 = require("./clock.js");
exports.BATCH_AFTER = 2; // requests under way: the default of batchAfter
const GATHER_AT_MOST = 5; // milliseconds: short beside what an answer may take
const MAX_BATCH = 128; // operations
const MAX_BYTES = 60 << 10; // of a body, of which a server takes 64 KiB
const MAX_OPERATION = MAX_BYTES / 16; // a larger one is sent alone
const NO_BATCHES_FOR = 60000;
/** Why a call has no reply from a batch. */
exports.ALONE = Symbol('to be sent alone');
const KINDS = { 'POST /locks': 'acquire', 'POST /leases/current/extend': 'extend', 'DELETE /leases/current': 'release' };
/** What a request is in a batch; undefined if it cannot be in one. */
function operationOf({ method, path, headers, body, probe }) {
    const kind = KINDS[`${method} ${path}`];
    if (!kind || probe !== undefined || headers['Prefer'] || (kind === 'acquire' && body?.includes('"wait_ms":')))
        return undefined;
    const { 'Idempotency-Key': key, 'Fencelock-Lease': lease, Authorization: authorization = '' } = headers;
    const text = `{"operation":"${kind}"` + (key ? `,"idempotency_key":${JSON.stringify(key)}` : '') + (lease ? `,"lease_id":${JSON.stringify(lease)}` : '') + (body ? `,"body":${body}` : '') + '}';
    return weight(text) <= MAX_OPERATION && (lease === undefined || /^[!-~]*$/.test(lease)) ? { text, authorization } : undefined;
}
exports.operationOf = operationOf;
/** At least the bytes of a text and a comma. */
function weight(text) {
    return (/^[\0-\x7f]*$/.test(text) ? text.length : 3 * text.length) + 1;
}
class Batcher {
    #after;
    #send;
    #underWay = 0; // requests, of one call or of several
    #batches = 0; // of them of several
    #mostBatches;
    #waiting = [];
    #timer;
    #refused; // until then the server is sent no batch
    constructor(after, mostBatches, refused, send) {
        this.#after = after;
        this.#mostBatches = mostBatches;
        this.#refused = refused;
        this.#send = send;
    }
    /** The reply to an operation, or ALONE if it is to be sent alone: `ended` must follow then. When `signal` is aborted it
     * rejects with the reason, and `left` gets the outcome if there will be one, undefined if it was not sent. */
    async gather(operation, signal, left, sent) {
        if (this.#after < 0 || this.#underWay < this.#after || (0, clock_js_1.now)() < this.#refused.until) {
            this.#underWay++;
            return exports.ALONE;
        }
        let settle = () => { };
        let fail = () => { };
        const outcome = new Promise((resolve, reject) => [settle, fail] = [resolve, reject]);
        const gathered = { ...operation, batch: undefined, outcome, settle, fail, sent };
        this.#waiting.push(gathered);
        if (this.#waiting.length === 1) {
            clearTimeout(this.#timer);
            this.#timer = setTimeout(() => {
                while (this.#ready())
                    this.#sendNext();
            }, GATHER_AT_MOST);
        }
        let gone = false;
        const unhook = (0, clock_js_1.onAbort)(signal, (reason) => {
            gone = true;
            this.#leave(gathered, reason, left);
        });
        try {
            const reply = await Promise.race([outcome, aborted(signal)]);
            if (reply === exports.ALONE && gone)
                throw signal.reason; // #leave has counted it out
            return reply;
        }
        finally {
            unhook();
        }
    }
    /** Says that a request is not under way any more. */
    ended() {
        this.#underWay--;
        while (this.#underWay < this.#after && this.#ready())
            this.#sendNext();
    }
    #ready() {
        return this.#waiting.length > 0 && this.#batches < this.#mostBatches;
    }
    /** Sends the first that waits, with all others that can be in its batch. */
    #sendNext() {
        const calls = [];
        const [first] = this.#waiting;
        let size = 0;
        this.#waiting = this.#waiting.filter((each) => {
            const more = weight(each.text);
            if (calls.length >= MAX_BATCH || each.authorization !== first?.authorization || size + more > MAX_BYTES)
                return true;
            calls.push(each);
            size += more;
            return false;
        });
        this.#underWay++;
        if (calls.length === 1 && this.#after > 0)
            return calls[0]?.settle(exports.ALONE);
        this.#batches++;
        const batch = { waiting: calls.length, abort: new AbortController() };
        for (const each of calls) {
            each.batch = batch;
            each.sent();
        }
        void this.#perform(calls, batch);
    }
    /** The caller of a call has given up. */
    #leave(gathered, reason, left) {
        const { batch, outcome } = gathered;
        if (!batch) {
            this.#waiting = this.#waiting.filter((other) => other !== gathered);
            outcome.then(() => this.ended(), () => { }); // if it was to be sent alone
            gathered.fail(reason);
            return left(undefined);
        }
        const late = outcome.then((reply) => (reply === exports.ALONE ? (this.ended(), undefined) : reply));
        late.catch(() => { });
        if (--batch.waiting > 0)
            left(late);
        else
            batch.abort.abort();
    }
    /** Sends a batch, and gives each call its outcome. */
    async #perform(calls, batch) {
        try {
            const reply = await this.#send(`{"operations":[${calls.map((each) => each.text).join()}]}`, calls[0]?.authorization ?? '', batch.abort.signal);
            const results = resultsOf(reply, calls.length);
            if (!results && refusesBatches(reply.status)) {
                this.#refused.until = (0, clock_js_1.now)() + NO_BATCHES_FOR;
                this.#underWay += calls.length;
                for (const each of calls)
                    each.settle(exports.ALONE);
                return;
            }
            // What is not an answer to a batch is one to each call.
            calls.forEach((each, i) => each.settle(results ? { ...reply, ...results[i] } : { ...reply, text: reply.status < 300 ? '' : reply.text }));
        }
        catch (error) {
            for (const each of calls)
                each.fail(error);
        }
        finally {
            this.#batches--;
            this.ended();
            if (this.#ready())
                this.#sendNext(); // what gathered meanwhile
        }
    }
}
exports.Batcher = Batcher;
/** Rejects with the signal's reason. */
function aborted(signal) {
    return new Promise((_, reject) => (0, clock_js_1.onAbort)(signal, reject));
}
function resultsOf({ status, text }, n) {
    if (status !== 200)
        return undefined;
    try {
        const { results } = JSON.parse(text);
        if (results.length !== n)
            return undefined;
        return results.map((r) => ({ status: r.status, text: r.body === undefined ? '' : JSON.stringify(r.body), retryAfter: r.retry_after_s ? String(r.retry_after_s) : '' }));
    }
    catch {
        return undefined;
    }
}
/** Whether a status refuses the batch as such: an older server, or a proxy, does not know the route, or does not like the
 * body. No operation was done then. */
function refusesBatches(status) {
    return (status >= 400 && status < 500 && ![401, 408, 429].includes(status)) || status === 501;
}
