/** Milliseconds on the monotonic clock, the one of `Lease.until`. */
export const now = () => performance.now();
/** The longest delay that timers know; a longer sleep is several. */
export const LONGEST_TIMER = 2 ** 31 - 1;
/** Sleeps, and rejects with the signal's reason when it is aborted. */
export async function sleep(milliseconds, signal) {
    const end = now() + milliseconds;
    for (let left = milliseconds; left > 0; left = end - now())
        await nap(Math.min(left, LONGEST_TIMER), signal);
    signal?.throwIfAborted();
}
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
/** What a promise gives. Rejects with what `late` makes if that takes longer, or with the signal's reason when it is aborted first. */
export async function within(promise, milliseconds, late, signal) {
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
/** Calls a function that an application gave to be told something. An error of it, also of a promise that it returns, is
 * dropped: it may not end what the function is told of. */
export function tell(f, about) {
    try {
        Promise.resolve(f?.(about)).catch(() => { });
    }
    catch {
        // As above.
    }
}
/** Has `f` called with the reason when the signal is aborted, also if it is already.
 * Returns what takes that back. */
export function onAbort(signal, f) {
    if (!signal)
        return () => { };
    if (signal.aborted)
        f(signal.reason);
    const listener = () => f(signal.reason);
    signal.addEventListener('abort', listener, { once: true });
    return () => signal.removeEventListener('abort', listener);
}
