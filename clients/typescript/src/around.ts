/** What the work around a call holds: in Node it is known without being passed on. */

import { Lease } from './lease.js';

/** A lease that a `do` took and that others in its work may join, or would wait for. */
export interface Held {
  readonly owner: object;
  readonly servers: readonly string[];
  readonly lease: Lease;
  readonly over: boolean;
}

/** A list, from the inside to the outside. */
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

/** A browser has none: there the signal alone tells. */
async function storage(): Promise<Storage | undefined> {
  const { process } = globalThis as { process?: { versions?: { node?: string } } };
  if (shared[KEY] || !process?.versions?.node) return shared[KEY];
  const { AsyncLocalStorage } = await import(/* @vite-ignore */ node);
  return (shared[KEY] ??= new AsyncLocalStorage() as Storage);
}

/** Runs work, whose calls know what is held. */
export async function inside<T>(held: Held, work: () => Promise<T>): Promise<T> {
  const known = shared[KEY] ?? (await storage());
  return known ? known.run({ held, outer: known.getStore() }, work) : work();
}

/** What is held around the caller, from the inside to the outside. */
export function around(): Held[] {
  const list: Held[] = [];
  for (let at = shared[KEY]?.getStore(); at; at = at.outer) if (!at.held.over) list.push(at.held);
  return list;
}
