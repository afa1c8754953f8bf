/** Signals that compare the clock when they are read. */
/** Has the signal of a controller abort itself when its `aborted` or `reason` is read, or `throwIfAborted` called, and
 * there is a reason to: where the event loop was blocked past the end of a lease, no timer has run yet. */
export declare function live(controller: AbortController, reason: () => Error | undefined): void;
