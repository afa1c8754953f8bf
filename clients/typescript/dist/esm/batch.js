/** Calls made at the same time share requests, since most of the cost of a call is its request. The first `batchAfter` calls to
 * a server are sent as single requests. While these are under way, further extends, releases, and acquires that do not wait in
 * the queue gather. They are sent together as one POST /locks/batch when a request under way has ended, or after 5 ms.
 *
 * For its caller a call in a batch is like one that is sent alone: it has its own key, time limit and outcome. When a caller
 * gives up, the batch continues for the others, and the client ends what that call was granted when the response arrives. The
 * request is aborted when all its callers have given up. If a server, or a proxy, refuses the batch as a whole, the client
 * sends it single requests for a minute. */
import { now, onAbort } from './clock.js';
export const BATCH_AFTER = 2; // requests under way: the default of batchAfter
const GATHER_AT_MOST = 5; // milliseconds: short compared with the time of a request
const MAX_BATCH = 128; // operations
const MAX_BYTES = 60 << 10; // of a body; a server accepts 64 KiB
const MAX_OPERATION = MAX_BYTES / 16; // a larger one is sent alone
const NO_BATCHES_FOR = 60000;
/** Returned for a call that is not sent in a batch: the caller has to send it as a single request. */
export const ALONE = Symbol('to be sent alone');
const KINDS = { 'POST /locks': 'acquire', 'POST /leases/current/extend': 'extend', 'DELETE /leases/current': 'release' };
/** The element of a batch for a request; undefined if the request cannot be sent in a batch. */
export function operationOf({ method, path, headers, body, probe }) {
    const kind = KINDS[`${method} ${path}`];
    if (!kind || probe !== undefined || headers['Prefer'] || (kind === 'acquire' && body?.includes('"wait_ms":')))
        return undefined;
    const { 'Idempotency-Key': key, 'Fencelock-Lease': lease, Authorization: authorization = '' } = headers;
    const text = `{"operation":"${kind}"` + (key ? `,"idempotency_key":${JSON.stringify(key)}` : '') + (lease ? `,"lease_id":${JSON.stringify(lease)}` : '') + (body ? `,"body":${body}` : '') + '}';
    return weight(text) <= MAX_OPERATION && (lease === undefined || /^[!-~]*$/.test(lease)) ? { text, authorization } : undefined;
}
/** An upper bound of the bytes that a text and a comma have in UTF-8. */
function weight(text) {
    return (/^[\0-\x7f]*$/.test(text) ? text.length : 3 * text.length) + 1;
}
export class Batcher {
    #after;
    #send;
    #underWay = 0; // requests: single ones and batches
    #batches = 0; // the batches among them
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
    /** Returns the response to an operation from its batch, or ALONE. After ALONE the caller sends the operation as a single
     * request, and calls `ended` when that request is over. When `signal` is aborted, `gather` rejects with its reason. It then
     * calls `left`: with the outcome to come if the batch continues for others, with undefined if the operation was not sent. */
    async gather(operation, signal, left, sent) {
        if (this.#after < 0 || this.#underWay < this.#after || now() < this.#refused.until) {
            this.#underWay++;
            return ALONE;
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
        const unhook = onAbort(signal, (reason) => {
            gone = true;
            this.#leave(gathered, reason, left);
        });
        try {
            const reply = await Promise.race([outcome, aborted(signal)]);
            if (reply === ALONE && gone)
                throw signal.reason; // #leave calls ended for it
            return reply;
        }
        finally {
            unhook();
        }
    }
    /** Notes that a request has ended, and sends what has gathered if there is room for it. */
    ended() {
        this.#underWay--;
        while (this.#underWay < this.#after && this.#ready())
            this.#sendNext();
    }
    #ready() {
        return this.#waiting.length > 0 && this.#batches < this.#mostBatches;
    }
    /** Sends the first waiting operation, with all others that fit into its batch. */
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
            return calls[0]?.settle(ALONE);
        this.#batches++;
        const batch = { waiting: calls.length, abort: new AbortController() };
        for (const each of calls) {
            each.batch = batch;
            each.sent();
        }
        void this.#perform(calls, batch);
    }
    /** Takes out a call whose caller has given up. */
    #leave(gathered, reason, left) {
        const { batch, outcome } = gathered;
        if (!batch) {
            this.#waiting = this.#waiting.filter((other) => other !== gathered);
            outcome.then(() => this.ended(), () => { }); // if it was settled as ALONE before: its caller sends nothing now
            gathered.fail(reason);
            return left(undefined);
        }
        const late = outcome.then((reply) => (reply === ALONE ? (this.ended(), undefined) : reply));
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
                this.#refused.until = now() + NO_BATCHES_FOR;
                this.#underWay += calls.length;
                for (const each of calls)
                    each.settle(ALONE);
                return;
            }
            // A response without results, such as a 503, is the response to each call.
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
/** Rejects with the signal's reason. */
function aborted(signal) {
    return new Promise((_, reject) => onAbort(signal, reject));
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
/** Whether a status refuses the batch itself, because an older server or a proxy does not know the route or does not accept
 * the body. None of its operations was carried out then. */
function refusesBatches(status) {
    return (status >= 400 && status < 500 && ![401, 408, 429].includes(status)) || status === 501;
}
