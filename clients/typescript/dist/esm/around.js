/** The leases that the work around a call holds. In Node an AsyncLocalStorage carries them, so that nobody passes them on. */
const KEY = Symbol.for('fencelock.around'); // both module systems share it
const shared = globalThis;
const node = 'node:async_hooks'; // a variable, so that bundlers for browsers do not look for it
/** The AsyncLocalStorage; undefined in a browser, where only `options.signal` shows what is held. */
async function storage() {
    const { process } = globalThis;
    if (shared[KEY] || !process?.versions?.node)
        return shared[KEY];
    const { AsyncLocalStorage } = await import(/* @vite-ignore */ node);
    return (shared[KEY] ??= new AsyncLocalStorage());
}
/** Runs work. For the calls inside it, `around` has `held` in its list. */
export async function inside(held, work) {
    const known = shared[KEY] ?? (await storage());
    return known ? known.run({ held, outer: known.getStore() }, work) : work();
}
/** The leases held around the caller that are not over, the innermost first. */
export function around() {
    const list = [];
    for (let at = shared[KEY]?.getStore(); at; at = at.outer)
        if (!at.held.over)
            list.push(at.held);
    return list;
}
