/** Milliseconds on the monotonic clock, which `Lease.until` uses, too. */
export declare const now: () => number;
/** The longest delay of a timer, in milliseconds. A longer sleep uses several timers. */
export declare const LONGEST_TIMER: number;
/** Sleeps, and rejects with the signal's reason when it is aborted. */
export declare function sleep(milliseconds: number, signal?: AbortSignal): Promise<void>;
/** Settles as the promise does. If the promise takes longer than `milliseconds`, it rejects with the error that `late` makes; if
 * the signal is aborted first, with the signal's reason. */
export declare function within<T>(promise: PromiseLike<T>, milliseconds: number, late: () => Error, signal?: AbortSignal): Promise<T>;
/** Calls a callback of the application. If it throws, or if the promise that it returns rejects, the error is
 * dropped: a faulty callback must not end the work that it is told about. */
export declare function tell<T>(f: ((about: T) => unknown) | undefined, about: T): void;
/** Calls `f` with the reason when the signal is aborted; at once if it is aborted already.
 * Returns a function that removes the listener. */
export declare function onAbort(signal: AbortSignal | undefined, f: (reason: unknown) => void): () => void;
