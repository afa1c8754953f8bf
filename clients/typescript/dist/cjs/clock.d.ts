/** Milliseconds on the monotonic clock, the one of `Lease.until`. */
export declare const now: () => number;
/** The longest delay that timers know; a longer sleep is several. */
export declare const LONGEST_TIMER: number;
/** Sleeps, and rejects with the signal's reason when it is aborted. */
export declare function sleep(milliseconds: number, signal?: AbortSignal): Promise<void>;
/** What a promise gives. Rejects with what `late` makes if that takes longer, or with the signal's reason when it is aborted first. */
export declare function within<T>(promise: PromiseLike<T>, milliseconds: number, late: () => Error, signal?: AbortSignal): Promise<T>;
/** Calls a function that an application gave to be told something. An error of it, also of a promise that it returns, is
 * dropped: it may not end what the function is told of. */
export declare function tell<T>(f: ((about: T) => unknown) | undefined, about: T): void;
/** Has `f` called with the reason when the signal is aborted, also if it is already.
 * Returns what takes that back. */
export declare function onAbort(signal: AbortSignal | undefined, f: (reason: unknown) => void): () => void;
