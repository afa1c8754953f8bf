/** Sends calls: to which server, and how often. docs/how-to/write-a-client.md has the rules. */
import { now, sleep, tell, within } from './clock.js';
import { FencelockError, Held, shown, Unavailable, unavailable } from './errors.js';
import { NoAnswer, Server } from './server.js';
import { SHORTEST_TRY, Tries } from './tries.js';
export class Calls {
    servers;
    timeout;
    /** Leases that are kept alive until they are released, which close does. */
    kept = new Set();
    /** Set when the client has been closed: nothing is sent any more. */
    closed;
    #settings;
    #busy = 0; // what idle waits for
    #idle = []; // called when nothing is busy any more
    #background = new Map(); // what no caller waits for
    #first = 0; // the server that answered last
    #slowest = SHORTEST_TRY; // how long a recent answer took; old ones fade
    constructor(settings) {
        const { servers, timeout, patience, batchAfter, fetch } = settings;
        const poll = Math.floor(settings.poll / 1000) * 1000;
        if (typeof servers !== 'string' && !Array.isArray(servers))
            throw new TypeError(`servers must be a URL, or an array of URLs, not ${servers}`);
        const urls = typeof servers === 'string' ? servers.split(',') : servers;
        if (!urls.length || !(timeout > 0) || !(patience >= 0) || !(poll >= 1000)) {
            throw new RangeError('a client needs a server, a timeout above 0, a patience of 0 or more, and a poll of a second at least');
        }
        this.servers = urls.map((url) => new Server(url, fetch, batchAfter));
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
    /** Does what no caller waits for, until the signal that it gets is aborted; if it fails, TTLs end what it was to end. */
    inBackground(f) {
        const stop = new AbortController();
        const done = f(stop.signal).then(() => { }, () => { }).finally(() => this.#background.delete(stop));
        this.#background.set(stop, done);
    }
    /** Resolves when no call is under way any more, and what is in the background is over, or has had so many milliseconds. */
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
        return new Tries(bounds, patience, this.#settings.poll);
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
            if (!(answer instanceof FencelockError))
                return answer;
            await sleep(this.#pause(call, tries, answer), call.signal);
        }
    }
    /** Reads events from one of the servers, another one for each n. */
    async listen(n, path, listener) {
        const server = this.servers[(this.#first + n) % this.servers.length];
        await server.listen(path, await this.#authorization(this.timeout, listener.signal), this.timeout, listener);
    }
    /** The pause before the next try; it throws the error if there is to be none. */
    #pause(call, tries, error) {
        if (error instanceof Held && tries.wait().left > 0)
            return tries.held();
        tries.queued &&= !(error instanceof Held);
        if (!(error instanceof Unavailable) || (call.once && tries.ambiguous))
            throw error;
        const pause = tries.nextPause(error);
        if (tries.over(pause))
            throw error;
        if (!call.quiet)
            tell(this.#settings.onRetry, { error, tries: tries.number, failing: tries.failing(), pause });
        return pause;
    }
    /** Asks each server once, beginning with the one that answered last. */
    async #askAll(call, tries) {
        let failure;
        for (const [i, at] of this.#order().entries()) {
            if (failure && tries.number >= this.servers.length && tries.over())
                break;
            const answer = await this.#ask(this.servers[at], call, tries, this.servers.length - i);
            if (!(answer instanceof Unavailable)) {
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
        return Math.min(this.timeout, Math.max(SHORTEST_TRY, 4 * this.#slowest) * 2 ** tries.silent);
    }
    async #ask(server, call, tries, unasked) {
        const { operation, resource, signal } = call;
        const what = resource ? `${operation} ${shown(resource)}` : operation;
        let authorization;
        try {
            authorization = await this.#authorization(Math.min(this.timeout, tries.deadline - now()), signal);
        }
        catch (error) {
            if (signal?.aborted)
                throw signal.reason;
            if (!(error instanceof NoAnswer))
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
            if (error instanceof FencelockError)
                return tries.done(call, error) ? { sent: now(), body: {} } : error;
            if (!(error instanceof NoAnswer))
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
            return unavailable(what, resource, 'no response in time');
        const headers = this.#headers(call, authorization, kept < left ? kept : 0);
        const body = call.body && JSON.stringify(call.body(left));
        tries.number++;
        tries.underWay = true;
        let asked = now();
        const sent = () => {
            asked = now();
        };
        // What the first try waits for its turn here does not count, up to the time of a try.
        const until = tries.deadline + (tries.number === 1 ? this.timeout : 0);
        let answered = true;
        try {
            const answer = await server.ask({ operation: what, resource, method, path, headers, body, limit: limit + kept, until, waits: kept > 0, probe, signal, sent, late: (outcome) => tries.late.push(outcome) });
            tries.underWay = false;
            return answer;
        }
        catch (error) {
            answered = error instanceof FencelockError;
            throw error;
        }
        finally {
            if (answered && !signal?.aborted)
                this.#answered(asked, kept);
        }
    }
    /** Notes what an answer took; one that waited in the queue says nothing. */
    #answered(asked, waited) {
        if (waited === 0)
            this.#slowest = Math.max(now() - asked, 0.9 * this.#slowest);
    }
    #headers(call, authorization, poll) {
        const headers = { ...call.headers, ...authorization };
        if (call.body)
            headers['Content-Type'] = 'application/json';
        if (poll)
            headers['Prefer'] = `wait=${poll / 1000}`; // it keeps the place in the queue
        return headers;
    }
    /** A function for the bearer token that fails, or takes longer than `limit`, is as a server that does not answer: the next
     * try calls it again. */
    async #authorization(limit, signal) {
        const { bearer } = this.#settings;
        if (bearer === undefined)
            return {};
        if (typeof bearer === 'string')
            return authorizationOf(bearer);
        try {
            const given = bearer();
            return authorizationOf(typeof given === 'string' ? given : await within(given, limit, () => new Error('it took too long'), signal));
        }
        catch (error) {
            if (signal?.aborted)
                throw signal.reason;
            throw new NoAnswer(`the bearer token cannot be had: ${error instanceof Error ? error.message : String(error)}`, false, error);
        }
    }
}
function noAnswer(what, resource, server, error) {
    const failure = unavailable(what, resource, `${server.url}: ${error.message}`);
    if (error.cause !== undefined)
        failure.cause = error.cause;
    return Object.assign(failure, { url: server.url });
}
/** A bearer token without the white space around it. What fetch says of a wrong one shows it. */
function authorizationOf(bearer) {
    const text = bearer.trim();
    if (!/^[!-~]+$/.test(text))
        throw new TypeError('the bearer token is empty, or has characters that no token has');
    return { Authorization: `Bearer ${text}` };
}
