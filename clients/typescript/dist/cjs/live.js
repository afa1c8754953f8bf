"use strict";
/** Signals that compare the clock when they are read. */
Object.defineProperty(exports, "__esModule", { value: true });
exports.live = void 0;
const read = (of) => Object.getOwnPropertyDescriptor(AbortSignal.prototype, of)?.get;
const abortedOf = read('aborted');
const reasonOf = read('reason');
/** Has the signal of a controller abort itself when its `aborted` or `reason` is read, or `throwIfAborted` called, and
 * there is a reason to: where the event loop was blocked past the end of a lease, no timer has run yet. */
function live(controller, reason) {
    if (!abortedOf || !reasonOf)
        return; // a signal of a library's own, which has no such getters
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
