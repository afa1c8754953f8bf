/** Sends calls: to which server, and how often. docs/how-to/write-a-client.md has the rules. */
import { FencelockError } from './errors.js';
import { Bearer, Retry } from './options.js';
import { Fetch } from './platform.js';
import { Answer, Listener, Server } from './server.js';
import { Bounds, Tries } from './tries.js';
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
    /** Does what no caller waits for, until the signal that it gets is aborted; if it fails, TTLs end what it was to end. */
    inBackground(f: (signal: AbortSignal) => Promise<unknown>): void;
    /** Resolves when no call is under way any more, and what is in the background is over, or has had so many milliseconds. */
    idle(milliseconds: number): Promise<void>;
    tries(bounds: Bounds, patience?: number): Tries;
    /** Sends a call until a server answers it for good, its deadline has come, or none has for as long
     * as the client is patient. Every call but one that is to be sent `once` may be sent twice: an acquire carries
     * a key, a break the token of the lease, and the others change nothing twice. It rejects with the reason of the call's signal when that is aborted. */
    send(call: Call, tries?: Tries): Promise<Answer>;
    /** Reads events from one of the servers, another one for each n. */
    listen(n: number, path: string, listener: Listener): Promise<void>;
}
