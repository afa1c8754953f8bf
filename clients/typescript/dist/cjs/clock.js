"use strict";
Object.defineProperty(exports, "__esModule", { value: true });
exports.onAbort = exports.sleep = exports.LONGEST_TIMER = exports.now = void 0;
/** Milliseconds on the monotonic clock, the one of `Lease.until`. */
const now = () => performance.now();
exports.now = now;
/** The longest delay that timers know; a longer sleep is several. */
exports.LONGEST_TIMER = 2 ** 31 - 1;
/** Sleeps, and rejects with the signal's reason when it is aborted. */
async function sleep(milliseconds, signal) {
    const end = (0, exports.now)() + milliseconds;
    for (let left = milliseconds; left > 0; left = end - (0, exports.now)())
        await nap(Math.min(left, exports.LONGEST_TIMER), signal);
    signal?.throwIfAborted();
}
exports.sleep = sleep;
function nap(milliseconds, signal) {
    return new Promise((resolve, reject) => {
        if (signal?.aborted)
            return reject(signal.reason);
        const timer = setTimeout(() => {
            signal?.removeEventListener('abort', give);
            resolve();
        }, milliseconds);
        const give = () => {
            clearTimeout(timer);
            reject(signal?.reason);
        };
        signal?.addEventListener('abort', give, { once: true });
    });
}
/** Has `f` called with the reason when the signal is aborted, also if it is already.
 * Returns what takes that back. */
function onAbort(signal, f) {
    if (!signal)
        return () => { };
    if (signal.aborted)
        f(signal.reason);
    const listener = () => f(signal.reason);
    signal.addEventListener('abort', listener, { once: true });
    return () => signal.removeEventListener('abort', listener);
}
exports.onAbort = onAbort;
