/** What the work around a call holds: in Node it is known without being passed on. */
const KEY = Symbol.for('fencelock.around'); // both module systems share it
const shared = globalThis;
const node = 'node:async_hooks'; // a variable, so that bundlers for browsers do not look for it
/** A browser has none: there the signal alone tells. */
async function storage() {
    const { process } = globalThis;
    if (shared[KEY] || !process?.versions?.node)
        return shared[KEY];
    const { AsyncLocalStorage } = await import(/* @vite-ignore */ node);
    return (shared[KEY] ??= new AsyncLocalStorage());
}
/** Runs work, whose calls know what is held. */
export async function inside(held, work) {
    const known = shared[KEY] ?? (await storage());
    return known ? known.run({ held, outer: known.getStore() }, work) : work();
}
/** What is held around the caller, from the inside to the outside. */
export function around() {
    const list = [];
    for (let at = shared[KEY]?.getStore(); at; at = at.outer)
        if (!at.held.over)
            list.push(at.held);
    return list;
}
