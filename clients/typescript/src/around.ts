/** The leases that the work around a call holds. In Node an AsyncLocalStorage carries them, so that nobody passes them on. */

import { Lease } from './lease.js';

/** A lease that an earlier call took. A call inside its work may join it, or would wait for it in vain. */
export interface Held {
  readonly owner: object;
  readonly servers: readonly string[];
  readonly lease: Lease;
  readonly over: boolean;
}

/** A linked list of the leases held around some work, the innermost first. */
interface Around {
  readonly held: Held;
  readonly outer: Around | undefined;
}

interface Storage {
  getStore(): Around | undefined;
  run<T>(store: Around, f: () => T): T;
}

const KEY = Symbol.for('fencelock.around'); // both module systems share it
const shared = globalThis as { [KEY]?: Storage | undefined };
const node = 'node:async_hooks'; // a variable, so that bundlers for browsers do not look for it

/** The AsyncLocalStorage; undefined in a browser, where only `options.signal` shows what is held. */
async function storage(): Promise<Storage | undefined> {
  const { process } = globalThis as { process?: { versions?: { node?: string } } };
  if (shared[KEY] || !process?.versions?.node) return shared[KEY];
  const { AsyncLocalStorage } = await import(/* @vite-ignore */ node);
  return (shared[KEY] ??= new AsyncLocalStorage() as Storage);
}

/** Runs work. For the calls inside it, `around` has `held` in its list. */
export async function inside<T>(held: Held, work: () => Promise<T>): Promise<T> {
  const known = shared[KEY] ?? (await storage());
  return known ? known.run({ held, outer: known.getStore() }, work) : work();
}

/** The leases held around the caller that are not over, the innermost first. */
export function around(): Held[] {
  const list: Held[] = [];
  for (let at = shared[KEY]?.getStore(); at; at = at.outer) if (!at.held.over) list.push(at.held);
  return list;
}
