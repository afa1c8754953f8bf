"use strict";
/** Sends calls, and decides to which server and how often. docs/how-to/write-a-client.md has the rules. */
Object.defineProperty(exports, "__esModule", { value: true });
exports.Calls = void 0;
const clock_js_1 = require("./clock.js");
const errors_js_1 = require("./errors.js");
const server_js_1 = require("./server.js");
const tries_js_1 = require("./tries.js");
class Calls {
    servers;
    timeout;
    /** Leases that are kept alive. Close releases those that their holders have not. */
    kept = new Set();
    /** Set when the client has been closed: nothing is sent any more. */
    closed;
    #settings;
    #busy = 0; // functions that `counted` runs
    #idle = []; // called when nothing is busy any more
    #background = new Map(); // work that no caller waits for, each with what stops it
    #first = 0; // the index of the server that responded last
    #slowest = tries_js_1.SHORTEST_TRY; // milliseconds of the slowest recent response; each further one lets it fade by a tenth
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
    /** Runs f, and makes `idle` wait until it has ended. */
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
    /** Runs f without a caller that waits for it. Its errors are dropped: if f fails to end a lease, the lease's TTL does. When
     * the time of `idle` is over, the signal that f gets is aborted. */
    inBackground(f) {
        const stop = new AbortController();
        const done = f(stop.signal).then(() => { }, () => { }).finally(() => this.#background.delete(stop));
        this.#background.set(stop, done);
    }
    /** Waits until nothing runs under `counted`, and then until the work in the background has ended, which it stops after
     * so many milliseconds. */
    async idle(milliseconds) {
        if (this.#busy > 0)
            await new Promise((idle) => this.#idle.push(idle));
        const given = setTimeout(() => {
            for (const stop of this.#background.keys())
                stop.abort();
        }, milliseconds);
        while (this.#background.size > 0)
            await Promise.all(this.#background.values());
        clearTimeout(given);
    }
    tries(bounds, patience = this.#settings.patience) {
        return new tries_js_1.Tries(bounds, patience, this.#settings.poll);
    }
    /** Sends a call until a server gives a final response, the call's deadline passes, or all servers have failed for as long
     * as the client's patience. Any call that is not `once` may be sent twice: an acquire carries an idempotency key, a break the
     * token of the lease, and the others have no second effect. Rejects with the reason of the call's signal when that is aborted. */
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
    /** Reads events from one of the servers. Consecutive values of `n` take the servers in turn. */
    async listen(n, path, listener) {
        const server = this.servers[(this.#first + n) % this.servers.length];
        await server.listen(path, await this.#authorization(this.timeout, listener.signal), this.timeout, listener);
    }
    /** Returns the milliseconds to pause before the next try. Throws the error if the call is not tried again. */
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
            (0, clock_js_1.tell)(this.#settings.onRetry, { error, tries: tries.number, failing: tries.failing(), pause });
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
    /** How many milliseconds a try may take: four times the slowest recent response, doubled after each round in which no server
     * gave a final response. So the client waits for slow servers, and leaves frozen ones soon. A call that is sent `once` gets
     * the whole timeout, because giving it up leaves its caller in doubt. */
    #tryLimit(call, tries) {
        if (call.once)
            return this.timeout;
        return Math.min(this.timeout, Math.max(tries_js_1.SHORTEST_TRY, 4 * this.#slowest) * 2 ** tries.silent);
    }
    async #ask(server, call, tries, unasked) {
        const { operation, resource, signal } = call;
        const what = resource ? `${operation} ${(0, errors_js_1.shown)(resource)}` : operation;
        let authorization;
        try {
            authorization = await this.#authorization(Math.min(this.timeout, tries.deadline - (0, clock_js_1.now)()), signal);
        }
        catch (error) {
            if (signal?.aborted)
                throw signal.reason;
            if (!(error instanceof server_js_1.NoAnswer))
                throw error;
            tries.number++;
            return noAnswer(what, resource, server, error);
        }
        try {
            return await this.#try(server, call, what, tries, unasked, authorization);
        }
        catch (error) {
            if (signal?.aborted)
                throw signal.reason;
            tries.underWay = false;
            if (error instanceof errors_js_1.FencelockError)
                return tries.done(call, error) ? { sent: (0, clock_js_1.now)(), body: {} } : error;
            if (!(error instanceof server_js_1.NoAnswer))
                throw error;
            tries.ambiguous ||= error.sent;
            return noAnswer(what, resource, server, error);
        }
    }
    async #try(server, call, what, tries, unasked, authorization) {
        const { resource, method, path, signal } = call;
        const { left, kept } = tries.wait(server.crowded);
        const { limit, probe } = tries.limit(this.#tryLimit(call, tries), unasked, kept);
        if (limit <= 0)
            return (0, errors_js_1.unavailable)(what, resource, 'no response in time');
        const headers = this.#headers(call, authorization, kept < left ? kept : 0);
        const body = call.body && JSON.stringify(call.body(left));
        tries.number++;
        tries.underWay = true;
        let asked = (0, clock_js_1.now)();
        const sent = () => {
            asked = (0, clock_js_1.now)();
        };
        // The time that the first try waits in this client for its turn does not count against the deadline, up to one timeout.
        const until = tries.deadline + (tries.number === 1 ? this.timeout : 0);
        let answered = true;
        try {
            const answer = await server.ask({ operation: what, resource, method, path, headers, body, limit: limit + kept, until, waits: kept > 0, probe, signal, sent, late: (outcome) => tries.late.push(outcome) });
            tries.underWay = false;
            return answer;
        }
        catch (error) {
            answered = error instanceof errors_js_1.FencelockError;
            throw error;
        }
        finally {
            if (answered && !signal?.aborted)
                this.#answered(asked, kept);
        }
    }
    /** Notes how long a response took, unless its request waited in the queue. */
    #answered(asked, waited) {
        if (waited === 0)
            this.#slowest = Math.max((0, clock_js_1.now)() - asked, 0.9 * this.#slowest);
    }
    #headers(call, authorization, poll) {
        const headers = { ...call.headers, ...authorization };
        if (call.body)
            headers['Content-Type'] = 'application/json';
        if (poll)
            headers['Prefer'] = `wait=${poll / 1000}`; // after the poll the server keeps the place in the queue
        return headers;
    }
    /** The header for the bearer token. If the application's function for the token fails, or takes longer than `limit`
     * milliseconds, the try fails as if the server had not responded, and the next try calls the function again. */
    async #authorization(limit, signal) {
        const { bearer } = this.#settings;
        if (bearer === undefined)
            return {};
        if (typeof bearer === 'string')
            return authorizationOf(bearer);
        try {
            const given = bearer();
            return authorizationOf(typeof given === 'string' ? given : await (0, clock_js_1.within)(given, limit, () => new Error('it took too long'), signal));
        }
        catch (error) {
            if (signal?.aborted)
                throw signal.reason;
            throw new server_js_1.NoAnswer(`the bearer token cannot be had: ${error instanceof Error ? error.message : String(error)}`, false, error);
        }
    }
}
exports.Calls = Calls;
function noAnswer(what, resource, server, error) {
    const failure = (0, errors_js_1.unavailable)(what, resource, `${server.url}: ${error.message}`);
    if (error.cause !== undefined)
        failure.cause = error.cause;
    return Object.assign(failure, { url: server.url });
}
/** The header for a bearer token, without the white space around the token. A malformed token is refused here, because the
 * error message of fetch would show it. */
function authorizationOf(bearer) {
    const text = bearer.trim();
    if (!/^[!-~]+$/.test(text))
        throw new TypeError('the bearer token is empty, or has characters that no token has');
    return { Authorization: `Bearer ${text}` };
}
