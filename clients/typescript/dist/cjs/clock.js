"use strict";
Object.defineProperty(exports, "__esModule", { value: true });
exports.onAbort = exports.tell = exports.within = exports.sleep = exports.LONGEST_TIMER = exports.now = void 0;
/** Milliseconds on the monotonic clock, which `Lease.until` uses, too. */
const now = () => performance.now();
exports.now = now;
/** The longest delay of a timer, in milliseconds. A longer sleep uses several timers. */
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
/** Settles as the promise does. If the promise takes longer than `milliseconds`, it rejects with the error that `late` makes; if
 * the signal is aborted first, with the signal's reason. */
async function within(promise, milliseconds, late, signal) {
    const stop = new AbortController();
    const unhook = onAbort(signal, (reason) => stop.abort(reason));
    const timer = async () => {
        await sleep(milliseconds, stop.signal);
        throw late();
    };
    try {
        return await Promise.race([promise, timer()]);
    }
    finally {
        unhook();
        stop.abort();
    }
}
exports.within = within;
/** Calls a callback of the application. If it throws, or if the promise that it returns rejects, the error is
 * dropped: a faulty callback must not end the work that it is told about. */
function tell(f, about) {
    try {
        Promise.resolve(f?.(about)).catch(() => { });
    }
    catch {
        // As above.
    }
}
exports.tell = tell;
/** Calls `f` with the reason when the signal is aborted; at once if it is aborted already.
 * Returns a function that removes the listener. */
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
