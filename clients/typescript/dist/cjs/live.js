"use strict";
/** Signals that compare the clock when they are read. */
Object.defineProperty(exports, "__esModule", { value: true });
exports.live = void 0;
const read = (of) => Object.getOwnPropertyDescriptor(AbortSignal.prototype, of)?.get;
const abortedOf = read('aborted');
const reasonOf = read('reason');
/** Makes the signal of a controller look for a reason whenever its `aborted` or `reason` is read or its `throwIfAborted` is
 * called, and abort itself if there is one. If the event loop was blocked past the end of a lease, its code learns of the loss
 * this way, before any timer has run. */
function live(controller, reason) {
    if (!abortedOf || !reasonOf)
        return; // the AbortSignal of another library, which lacks these getters
    const { signal } = controller;
    const look = () => {
        const why = abortedOf.call(signal) ? undefined : reason();
        if (why)
            controller.abort(why);
    };
    Object.defineProperties(signal, {
        aborted: { get: () => (look(), abortedOf.call(signal)), configurable: true },
        reason: { get: () => (look(), reasonOf.call(signal)), configurable: true },
        throwIfAborted: { value: () => (look(), AbortSignal.prototype.throwIfAborted.call(signal)), configurable: true },
    });
}
exports.live = live;
