/** Milliseconds on the monotonic clock, the one of `Lease.until`. */
export declare const now: () => number;
/** The longest delay that timers know; a longer sleep is several. */
export declare const LONGEST_TIMER: number;
/** Sleeps, and rejects with the signal's reason when it is aborted. */
export declare function sleep(milliseconds: number, signal?: AbortSignal): Promise<void>;
/** Has `f` called with the reason when the signal is aborted, also if it is already.
 * Returns what takes that back. */
export declare function onAbort(signal: AbortSignal | undefined, f: (reason: unknown) => void): () => void;
