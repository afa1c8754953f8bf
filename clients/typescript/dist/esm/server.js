/** One of a client's URLs: a server, or a load balancer before several. */
import { ALONE, Batcher, operationOf } from './batch.js';
import { LONGEST_TIMER, now, onAbort } from './clock.js';
import { FencelockError, refusal, Refused } from './errors.js';
import { Lane } from './lane.js';
/** The failure of a request that got no response. */
export class NoAnswer extends Error {
    sent;
    /** `sent` says whether the server may have seen the request. */
    constructor(why, sent, cause) {
        super(why, { cause });
        this.sent = sent;
    }
}
/** Milliseconds between two probes while a request waits in the queue; the first comes sooner. */
const PROBE_EVERY = 5000;
/** How many requests of each kind may be under way to a server. Fetch was seen to open up to twice as many connections as
 * requests, and a client must not have more than 256. Each kind has a lane of its own, so that leases are extended in time
 * whatever else happens: requests that wait in the queue, or a burst of calls. */
const WAITS = 96;
const OTHERS = 32;
const EXTENDS = 12;
const BATCHES = 1; // with more, a whole burst would be under way at once, more than a server answers in time
const EXTEND_BATCHES = 4;
/** Milliseconds of silence after which a stream of events counts as broken. A server sends a line every 10 s. */
const QUIET = 30000;
const MAX_NAMES = 16;
const MAX_BODY = 16 << 20; // bytes
/** Failures after which the server cannot have seen the request. */
const NOT_SENT = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH', 'UND_ERR_CONNECT_TIMEOUT']);
export class Server {
    url;
    #fetch;
    #name = ''; // of the server that answered last (Fencelock-Server)
    #names = new Set(); // of all that answered
    #shared = false; // several servers answer here, in turn
    #batcher;
    #extendBatcher;
    #waits = new Lane(WAITS);
    #others = new Lane(OTHERS);
    #extends = new Lane(EXTENDS);
    constructor(url, fetch, batchAfter) {
        const base = globalThis.location?.href;
        let parsed;
        try {
            parsed = new URL(String(url).trim(), base);
        }
        catch {
            throw new TypeError('every server must be a URL such as http://127.0.0.1:8080');
        }
        if (!/^https?:$/.test(parsed.protocol) || parsed.username || parsed.password || parsed.search || parsed.hash) {
            throw new TypeError('every server must be a URL such as http://127.0.0.1:8080, without a password');
        }
        this.url = parsed.href.replace(/\/+$/, '');
        this.#fetch = fetch;
        const send = (body, authorization, signal) => {
            const headers = { 'Content-Type': 'application/json', ...(authorization && { Authorization: authorization }) };
            return this.#exchange({ method: 'POST', path: '/locks/batch', headers, body }, signal);
        };
        const refused = { until: 0 };
        this.#batcher = new Batcher(batchAfter, BATCHES, refused, send);
        this.#extendBatcher = new Batcher(batchAfter, EXTEND_BATCHES, refused, send);
    }
    /** Whether so many requests wait in queues that polls have to be short, so that all get their turns. */
    get crowded() {
        return this.#waits.crowded;
    }
    /** Sends a request, and rejects with NoAnswer, the error of a refusal, or the reason of its signal. */
    async ask(request) {
        const controller = new AbortController();
        const late = () => controller.abort(new NoAnswer('no response in time', true));
        let probed;
        let timer = request.until - now() <= LONGEST_TIMER ? setTimeout(late, request.until - now()) : undefined;
        const sent = () => {
            clearTimeout(timer); // the request's time limit begins now
            request.sent?.();
            timer = setTimeout(late, Math.min(request.limit, request.until - now()));
            probed = request.probe ? this.#probe(controller, request.probe) : undefined;
        };
        const { signal } = request;
        const giveUp = signal && (() => controller.abort(signal.reason));
        if (giveUp)
            signal.addEventListener('abort', giveUp, { once: true });
        let unsent = false;
        const left = (late) => (late ? request.late?.(late) : (unsent = true));
        try {
            return this.#judged(request, await this.#reply(request, controller.signal, left, sent));
        }
        catch (error) {
            if (error instanceof FencelockError)
                throw error;
            if (unsent && error instanceof NoAnswer)
                throw new NoAnswer(error.message, false);
            throw controller.signal.aborted ? controller.signal.reason : new NoAnswer(reason(error), !isUnsent(error));
        }
        finally {
            clearTimeout(timer);
            probed?.();
            if (giveUp)
                signal.removeEventListener('abort', giveUp);
        }
    }
    /** Reads a stream of events until it ends. Gives up if the stream has not begun after `limit` milliseconds. */
    async listen(path, headers, limit, { signal, opened, heard }) {
        const controller = new AbortController();
        const unhook = onAbort(signal, () => controller.abort());
        let quiet = setTimeout(() => controller.abort(), limit);
        try {
            const response = await this.#fetch(this.url + path, { method: 'GET', headers, signal: controller.signal, redirect: 'manual' });
            if (response.status !== 200 || !response.headers.get('content-type')?.startsWith('text/event-stream') || !response.body)
                return;
            opened();
            const reader = response.body.getReader();
            const decoder = new TextDecoder();
            for (let text = '';;) {
                clearTimeout(quiet);
                quiet = setTimeout(() => controller.abort(), QUIET);
                const { done, value } = await reader.read();
                if (done)
                    return;
                const parts = (text + decoder.decode(value, { stream: true })).split('event:');
                if (parts.length > 1)
                    heard();
                text = parts.at(-1).slice(-'event'.length); // the next "event:" may have begun
            }
        }
        finally {
            clearTimeout(quiet);
            unhook();
            controller.abort(); // closes a stream that was not read to its end
        }
    }
    /** Sends a request alone or in a batch. */
    async #reply(request, signal, left, sent) {
        const operation = operationOf(request);
        if (!operation)
            return this.#inTurn(request, signal, left, sent);
        const batcher = isExtend(request) ? this.#extendBatcher : this.#batcher;
        const reply = await batcher.gather(operation, signal, left, sent);
        if (reply !== ALONE)
            return reply;
        try {
            return await this.#inTurn(request, signal, left, sent);
        }
        finally {
            batcher.ended();
        }
    }
    /** Sends a request when one of its lane's connections is free. */
    async #inTurn(request, signal, left, sent) {
        const lane = isExtend(request) ? this.#extends : request.waits ? this.#waits : this.#others;
        try {
            await lane.enter(signal);
        }
        catch (error) {
            left(undefined);
            throw error;
        }
        try {
            sent();
            return await this.#exchange(request, signal);
        }
        finally {
            lane.leave();
        }
    }
    async #exchange({ method, path, headers, body }, signal) {
        const sent = now();
        const init = { method, headers, signal, redirect: 'manual' };
        if (body !== undefined)
            init.body = body;
        const response = await this.#fetch(this.url + path, init);
        const text = await textOf(response);
        this.#answered(response);
        const header = (name) => response.headers.get(name) ?? '';
        return { sent, status: response.status, text, retryAfter: header('retry-after'), requestId: header('x-request-id'), location: header('location') };
    }
    #judged(request, reply) {
        try {
            return { sent: reply.sent, body: judge(request, reply) };
        }
        catch (error) {
            if (error instanceof FencelockError)
                Object.assign(error, { url: this.url, requestId: reply.requestId });
            throw error;
        }
    }
    /** Notes which server responded. If a name comes back after another one, several servers
     * share this URL. If the name only changes, the server was restarted. */
    #answered(response) {
        const name = response.headers.get('fencelock-server') ?? '';
        if (name === '' || name === this.#name)
            return;
        if (this.#names.has(name))
            this.#shared = true;
        if (this.#names.size >= MAX_NAMES)
            this.#names.clear();
        this.#names.add(name);
        this.#name = name;
    }
    /** Asks from time to time whether the server responds at all, while a request waits in its queue: a frozen
     * server would keep the request until the end of its wait. Behind a load balancer the probe may reach
     * another server, so its failure counts for nothing. Returns a function that stops the probes. */
    #probe(waiting, limit) {
        const probe = () => {
            timer = setTimeout(probe, PROBE_EVERY);
            this.ask({ operation: 'probe', resource: '', method: 'GET', path: '/healthz', headers: {}, limit, until: Infinity, waits: false, signal: waiting.signal }).catch((error) => {
                // Any response shows that the server is alive, also a refusal.
                if (error instanceof NoAnswer && !this.#shared)
                    waiting.abort(new NoAnswer('the server does not answer while the request waits', true));
            });
        };
        let timer = setTimeout(probe, limit);
        return () => clearTimeout(timer);
    }
}
function isExtend({ path }) {
    return path === '/leases/current/extend';
}
/** The text of a response. Throws Refused in the middle of a text that is too long to come from the service. */
async function textOf(response) {
    if (response.status === 204)
        return '';
    const length = response.headers.get('content-length');
    const bounded = length !== null && !response.headers.has('content-encoding') && Number(length) <= MAX_BODY;
    if (bounded || !response.body)
        return response.text(); // fetch reads no more than the length
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let text = '';
    let size = 0;
    for (;;) {
        const { done, value } = await reader.read();
        if (done)
            return text + decoder.decode();
        size += value.byteLength;
        if (size > MAX_BODY) {
            await reader.cancel();
            throw new Refused("the answer is too long to be the lock service's: is the address right?");
        }
        text += decoder.decode(value, { stream: true });
    }
}
/** Where a redirect points, without the path, which may have a lease id in it. */
function target({ location }) {
    try {
        return new URL(location).origin;
    }
    catch {
        return 'another path';
    }
}
function judge({ operation, resource }, reply) {
    const { status } = reply;
    const body = parse(reply.text);
    if (status >= 300 && status < 400) {
        throw refusal(operation, resource, status, { title: `a redirect to ${target(reply)}, which is not followed: is the address right?` }, '');
    }
    if (status < 200 || status >= 300) {
        throw refusal(operation, resource, status, body ?? {}, reply.retryAfter);
    }
    if (!body && status !== 204)
        throw new Refused(`${operation}: the response did not come from the lock service: is the address right?`);
    return body ?? {};
}
/** The JSON object that a text is, if it is one. */
export function parse(text) {
    if (!text.startsWith('{'))
        return undefined; // an exception would cost as much as the rest of the client
    try {
        const value = JSON.parse(text);
        return typeof value === 'object' && value !== null ? value : undefined;
    }
    catch {
        return undefined;
    }
}
/** Why a fetch failed: its error has the reason in its cause. */
function reason(error) {
    const { cause, message } = error;
    return cause?.message || cause?.code || message || String(error);
}
function isUnsent(error) {
    return NOT_SENT.has(String(error.cause?.code));
}
