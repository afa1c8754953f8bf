/** Sends calls, and decides to which server and how often. docs/how-to/write-a-client.md has the rules. */
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
    /** The verb for messages: acquire, extend, …. */
    readonly operation: string;
    /** The resource, several with ", " between them; "" if it is not known. */
    readonly resource: string;
    readonly method: string;
    readonly path: string;
    readonly headers?: Record<string, string>;
    /** Makes the body. `wait` is how many milliseconds the request may wait in the queue. */
    readonly body?: (wait: number) => unknown;
    readonly signal?: AbortSignal | undefined;
    /** No caller waits for the call, so onRetry is not called. */
    readonly quiet?: boolean;
    /** Of a break: the fencing token of the lease to end. */
    readonly breaks?: number;
    /** The call is not sent again after a try that may have taken effect. */
    readonly once?: boolean;
}
export declare class Calls {
    #private;
    readonly servers: readonly Server[];
    readonly timeout: number;
    /** Leases that are kept alive. Close releases those that their holders have not. */
    readonly kept: Set<{
        finish(): Promise<unknown>;
    }>;
    /** Set when the client has been closed: nothing is sent any more. */
    closed: FencelockError | undefined;
    constructor(settings: CallSettings);
    /** Runs f, and makes `idle` wait until it has ended. */
    counted<T>(f: () => Promise<T>): Promise<T>;
    /** Runs f without a caller that waits for it. Its errors are dropped: if f fails to end a lease, the lease's TTL does. When
     * the time of `idle` is over, the signal that f gets is aborted. */
    inBackground(f: (signal: AbortSignal) => Promise<unknown>): void;
    /** Waits until nothing runs under `counted`, and then until the work in the background has ended, which it stops after
     * so many milliseconds. */
    idle(milliseconds: number): Promise<void>;
    tries(bounds: Bounds, patience?: number): Tries;
    /** Sends a call until a server gives a final response, the call's deadline passes, or all servers have failed for as long
     * as the client's patience. Any call that is not `once` may be sent twice: an acquire carries an idempotency key, a break the
     * token of the lease, and the others have no second effect. Rejects with the reason of the call's signal when that is aborted. */
    send(call: Call, tries?: Tries): Promise<Answer>;
    /** Reads events from one of the servers. Consecutive values of `n` take the servers in turn. */
    listen(n: number, path: string, listener: Listener): Promise<void>;
}
