/** Signals that compare the clock when they are read. */
/** Makes the signal of a controller look for a reason whenever its `aborted` or `reason` is read or its `throwIfAborted` is
 * called, and abort itself if there is one. If the event loop was blocked past the end of a lease, its code learns of the loss
 * this way, before any timer has run. */
export declare function live(controller: AbortController, reason: () => Error | undefined): void;
