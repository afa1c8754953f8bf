/** Sends calls: to which server, and how often. docs/reference/clients.md has the rules. */
import { FencelockError, Unavailable } from './errors.js';
import { Answer, Fetch, Listener, Server } from './server.js';
import { Bounds, Tries } from './tries.js';
/** A call that failed and is repeated. */
export interface Retry {
    /** Of the last try. */
    readonly error: Unavailable;
    /** So far. */
    readonly tries: number;
    /** Milliseconds since the first failure that still lasts. */
    readonly failing: number;
    /** Milliseconds before the next try. */
    readonly pause: number;
}
export declare type Bearer = string | (() => string | Promise<string>);
export interface CallSettings {
    readonly servers: string | readonly string[];
    readonly bearer: Bearer | undefined;
    readonly timeout: number;
    readonly patience: number;
    readonly poll: number;
    readonly batchAfter: number;
    readonly fetch: Fetch;
    readonly onRetry: ((retry: Retry) => void) | undefined;
}
export interface Call extends Bounds {
    /** What it does: acquire, extend, …. */
    readonly operation: string;
    /** What it is about; "" if that is not known. */
    readonly resource: string;
    readonly method: string;
    readonly path: string;
    readonly headers?: Record<string, string>;
    /** The body, made of how long the request may wait in the queue. */
    readonly body?: (wait: number) => unknown;
    readonly signal?: AbortSignal | undefined;
    /** No caller waits for it: its retries are not observed. */
    readonly quiet?: boolean;
    /** The fencing token of the lease that it breaks. */
    readonly breaks?: number;
    /** It is not sent again after a try that may have taken effect. */
    readonly once?: boolean;
}
export declare class Calls {
    #private;
    readonly servers: readonly Server[];
    readonly timeout: number;
    /** Leases that are kept alive until they are released, which close does. */
    readonly kept: Set<{
        finish(): Promise<unknown>;
    }>;
    /** Set when the client has been closed: nothing is sent any more. */
    closed: FencelockError | undefined;
    constructor(settings: CallSettings);
    /** Has idle wait for what is under way. */
    counted<T>(f: () => Promise<T>): Promise<T>;
    /** Does what no caller waits for; if it fails, TTLs end what it was to end. */
    inBackground(f: () => Promise<unknown>): void;
    /** Resolves when nothing is under way any more. */
    idle(): Promise<void>;
    tries(bounds: Bounds): Tries;
    /** Sends a call until a server answers it for good, its deadline has come, or none has for as long
     * as the client is patient. Every call but one that is to be sent `once` may be sent twice: an acquire carries
     * a key, a break the token of the lease, and the others change nothing twice. It rejects with the reason of the call's signal when that is aborted. */
    send(call: Call, tries?: Tries): Promise<Answer>;
    /** Reads events from one of the servers, another one for each n. */
    listen(n: number, path: string, listener: Listener): Promise<void>;
}
