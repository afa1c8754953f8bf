"use strict";
/** Sends calls: to which server, and how often. docs/reference/clients.md has the rules. */
Object.defineProperty(exports, "__esModule", { value: true });
exports.Calls = void 0;
const clock_js_1 = require("./clock.js");
const errors_js_1 = require("./errors.js");
const server_js_1 = require("./server.js");
const tries_js_1 = require("./tries.js");
class Calls {
    servers;
    timeout;
    /** Leases that are kept alive until they are released, which close does. */
    kept = new Set();
    /** Set when the client has been closed: nothing is sent any more. */
    closed;
    #settings;
    #busy = 0; // what idle waits for
    #idle = []; // called when nothing is busy any more
    #first = 0; // the server that answered last
    #slowest = tries_js_1.SHORTEST_TRY; // how long a recent answer took; old ones fade
    constructor(settings) {
        const { servers, timeout, patience, batchAfter, fetch } = settings;
        const poll = Math.floor(settings.poll / 1000) * 1000;
        if (typeof servers !== 'string' && !Array.isArray(servers))
            throw new TypeError(`servers must be a URL, or an array of URLs, not ${servers}`);
        const urls = typeof servers === 'string' ? servers.split(',') : servers;
        if (!urls.length || !(timeout > 0) || !(patience >= 0) || !(poll >= 1000)) {
            throw new RangeError('a client needs a server, a timeout above 0, a patience of 0 or more, and a poll of a second at least');
        }
        this.servers = urls.map((url) => new server_js_1.Server(url, fetch, batchAfter));
        this.timeout = timeout;
        this.#settings = { ...settings, poll };
    }
    /** Has idle wait for what is under way. */
    async counted(f) {
        this.#busy++;
        try {
            return await f();
        }
        finally {
            if (--this.#busy === 0)
                this.#idle.splice(0).forEach((idle) => idle());
        }
    }
    /** Does what no caller waits for; if it fails, TTLs end what it was to end. */
    inBackground(f) {
        this.counted(f).catch(() => { });
    }
    /** Resolves when nothing is under way any more. */
    async idle() {
        if (this.#busy > 0)
            await new Promise((idle) => this.#idle.push(idle));
    }
    tries(bounds) {
        return new tries_js_1.Tries(bounds, this.#settings.patience, this.#settings.poll);
    }
    /** Sends a call until a server answers it for good, its deadline has come, or none has for as long
     * as the client is patient. Every call but one that is to be sent `once` may be sent twice: an acquire carries
     * a key, a break the token of the lease, and the others change nothing twice. It rejects with the reason of the call's signal when that is aborted. */
    async send(call, tries = this.tries(call)) {
        for (;;) {
            if (this.closed)
                throw this.closed;
            call.signal?.throwIfAborted();
            const answer = await this.#askAll(call, tries);
            if (!(answer instanceof errors_js_1.FencelockError))
                return answer;
            await (0, clock_js_1.sleep)(this.#pause(call, tries, answer), call.signal);
        }
    }
    /** Reads events from one of the servers, another one for each n. */
    async listen(n, path, listener) {
        const server = this.servers[(this.#first + n) % this.servers.length];
        await server.listen(path, await this.#authorization(), this.timeout, listener);
    }
    /** The pause before the next try; it throws the error if there is to be none. */
    #pause(call, tries, error) {
        if (error instanceof errors_js_1.Held && tries.wait().left > 0)
            return tries.held();
        tries.queued &&= !(error instanceof errors_js_1.Held);
        if (!(error instanceof errors_js_1.Unavailable) || (call.once && tries.ambiguous))
            throw error;
        const pause = tries.nextPause(error);
        if (tries.over(pause))
            throw error;
        if (!call.quiet)
            this.#settings.onRetry?.({ error, tries: tries.number, failing: tries.failing(), pause });
        return pause;
    }
    /** Asks each server once, beginning with the one that answered last. */
    async #askAll(call, tries) {
        let failure;
        for (const [i, at] of this.#order().entries()) {
            if (failure && tries.number >= this.servers.length && tries.over())
                break;
            const answer = await this.#ask(this.servers[at], call, tries, this.servers.length - i);
            if (!(answer instanceof errors_js_1.Unavailable)) {
                this.#first = at;
                return answer;
            }
            tries.failed(answer);
            failure = answer;
            if (call.once && tries.ambiguous)
                break;
        }
        tries.silent++;
        return failure;
    }
    #order() {
        return this.servers.map((_, i) => (this.#first + i) % this.servers.length);
    }
    /** How long a try may take: four times what answers take, and twice as much after each round over all
     * servers without one, so that slow servers are waited for and frozen ones are not. A call that is not sent again
     * is waited for: to give it up leaves its caller in doubt. */
    #tryLimit(call, tries) {
        if (call.once)
            return this.timeout;
        return Math.min(this.timeout, Math.max(tries_js_1.SHORTEST_TRY, 4 * this.#slowest) * 2 ** tries.silent);
    }
    async #ask(server, call, tries, unasked) {
        const { operation, resource, method, path, signal } = call;
        const what = resource ? `${operation} ${(0, errors_js_1.shown)(resource)}` : operation;
        const { left, kept } = tries.wait();
        const { limit, probe } = tries.limit(this.#tryLimit(call, tries), unasked, kept);
        if (limit <= 0)
            return (0, errors_js_1.unavailable)(what, resource, 'no response in time');
        const headers = await this.#headers(call, kept < left ? kept : 0);
        const body = call.body && JSON.stringify(call.body(left));
        tries.number++;
        tries.underWay = true;
        const asked = (0, clock_js_1.now)();
        const overall = Math.min(limit + kept, tries.deadline - asked);
        try {
            const answer = await server.ask({ operation: what, resource, method, path, headers, body, limit: overall, probe, signal, late: (outcome) => tries.late.push(outcome) });
            tries.underWay = false;
            this.#answered(asked, kept);
            return answer;
        }
        catch (error) {
            if (signal?.aborted)
                throw signal.reason;
            tries.underWay = false;
            if (error instanceof errors_js_1.FencelockError)
                this.#answered(asked, kept);
            if (error instanceof errors_js_1.FencelockError)
                return tries.done(call, error) ? { sent: (0, clock_js_1.now)(), body: {} } : error;
            if (!(error instanceof server_js_1.NoAnswer))
                throw error;
            tries.ambiguous ||= error.sent;
            return Object.assign((0, errors_js_1.unavailable)(what, resource, `${server.url}: ${error.message}`), { url: server.url });
        }
    }
    /** Notes what an answer took; one that waited in the queue says nothing. */
    #answered(asked, waited) {
        if (waited === 0)
            this.#slowest = Math.max((0, clock_js_1.now)() - asked, 0.9 * this.#slowest);
    }
    async #headers(call, poll) {
        const headers = { ...call.headers, ...(await this.#authorization()) };
        if (call.body)
            headers['Content-Type'] = 'application/json';
        if (poll)
            headers['Prefer'] = `wait=${poll / 1000}`; // it keeps the place in the queue
        return headers;
    }
    async #authorization() {
        const { bearer } = this.#settings;
        if (bearer === undefined)
            return {};
        return { Authorization: `Bearer ${credential(typeof bearer === 'string' ? bearer : await bearer())}` };
    }
}
exports.Calls = Calls;
/** A bearer token without the white space around it. What fetch says of a wrong one shows it. */
function credential(bearer) {
    const text = bearer.trim();
    if (!/^[!-~]+$/.test(text))
        throw new TypeError('the bearer token is empty, or has characters that no token has');
    return text;
}
