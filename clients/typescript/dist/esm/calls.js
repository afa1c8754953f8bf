/** Sends calls: to which server, and how often. docs/reference/clients.md has the rules. */
import { now, sleep } from './clock.js';
import { FencelockError, Held, Unavailable, unavailable } from './errors.js';
import { NoAnswer, PROBE_EVERY, Server } from './server.js';
import { Tries } from './tries.js';
export class Calls {
    servers;
    timeout;
    #settings;
    #first = 0; // the server that answered last
    constructor(settings) {
        const { servers, timeout, patience, fetch } = settings;
        const poll = Math.floor(settings.poll / 1000) * 1000;
        const urls = typeof servers === 'string' ? servers.split(',') : servers;
        if (!urls.length || !(timeout > 0) || !(patience >= 0) || !(poll >= 1000)) {
            throw new RangeError('a client needs a server, a timeout above 0, a patience of 0 or more, and a poll of a second at least');
        }
        this.servers = urls.map((url) => new Server(url, fetch));
        this.timeout = timeout;
        this.#settings = { ...settings, poll };
    }
    tries(bounds) {
        return new Tries(bounds, this.#settings.patience, this.#settings.poll);
    }
    /** Sends a call until a server answers it for good, or none has for as long as the client
     * is patient. Every call but one that is to be sent `once` may be sent twice: an acquire carries
     * a key, a break the token of the lease, and the others change nothing twice. It rejects with the reason of the call's signal when that is aborted. */
    async send(call, tries = this.tries(call)) {
        for (;;) {
            call.signal?.throwIfAborted();
            const answer = await this.#askAll(call, tries);
            if (!(answer instanceof FencelockError))
                return answer;
            await sleep(this.#pause(call, tries, answer), call.signal);
        }
    }
    /** The pause before the next try; it throws the error if there is to be none. */
    #pause(call, tries, error) {
        if (error instanceof Held && tries.wait().left > 0)
            return tries.held();
        if (!(error instanceof Unavailable) || (call.once && tries.ambiguous))
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
        for (const at of this.#order()) {
            if (failure && tries.number >= this.servers.length && tries.over())
                break;
            const answer = await this.#ask(this.servers[at], call, tries);
            if (!(answer instanceof Unavailable)) {
                this.#first = at;
                return answer;
            }
            tries.failed(answer);
            failure = answer;
            if (call.once && tries.ambiguous)
                break;
        }
        return failure;
    }
    #order() {
        return this.servers.map((_, i) => (this.#first + i) % this.servers.length);
    }
    async #ask(server, call, tries) {
        const { operation, resource, method, path, signal } = call;
        const what = resource ? `${operation} ${resource}` : operation;
        const limit = tries.limit(this.timeout);
        if (limit <= 0)
            return unavailable(what, resource, 'no answer in time');
        const { left, kept } = tries.wait();
        const headers = await this.#headers(call, kept < left ? kept : 0);
        const body = call.body && JSON.stringify(call.body(left));
        const probe = kept > PROBE_EVERY ? this.timeout : undefined;
        tries.number++;
        try {
            return await server.ask({ operation: what, resource, method, path, headers, body, limit: limit + kept, probe, signal });
        }
        catch (error) {
            if (signal?.aborted)
                throw signal.reason;
            if (error instanceof FencelockError)
                return tries.done(call, error) ? { sent: now(), body: {} } : error;
            if (!(error instanceof NoAnswer))
                throw error;
            tries.ambiguous ||= error.sent;
            return unavailable(what, resource, `${server.url}: ${error.message}`);
        }
    }
    async #headers(call, poll) {
        const headers = { ...call.headers };
        if (call.body)
            headers['Content-Type'] = 'application/json';
        if (poll)
            headers['Prefer'] = `wait=${poll / 1000}`; // it keeps the place in the queue
        const { bearer } = this.#settings;
        if (bearer !== undefined)
            headers['Authorization'] = `Bearer ${credential(typeof bearer === 'string' ? bearer : await bearer())}`;
        return headers;
    }
}
/** A bearer token without the white space around it. What fetch says of a wrong one shows it. */
function credential(bearer) {
    const text = bearer.trim();
    if (!/^[!-~]+$/.test(text))
        throw new TypeError('the bearer token is empty, or has characters that no token has');
    return text;
}
