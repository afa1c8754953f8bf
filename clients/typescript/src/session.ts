/** The work under a lease, which calls in it may join. */

import { around, Held } from './around.js';
import { onAbort } from './clock.js';
import { live } from './live.js';
import { LeaseLost } from './errors.js';
import { Lease, leaseOf } from './lease.js';
import { AcquireOptions } from './options.js';
import { GRACE, HURRY } from './tries.js';

/** The session of each signal that was passed to its work. */
const sessions = new WeakMap<AbortSignal, Session>();

/** The Held of each lease that a call took. */
export const taken = new WeakMap<Lease, Held>();

/** The leases held around a call, as its signal and its asynchronous context show. */
export function heldAround(signal: AbortSignal | undefined): readonly Held[] {
  const lease = signal && leaseOf(signal);
  const known = (signal && sessions.get(signal)) || (lease && taken.get(lease));
  const others = around();
  return known ? [known, ...others.filter((held) => held !== known)] : others;
}

/** The lease around a call for which the call would wait forever; undefined if there is none. A call for resources would wait
 * if one of them is held around it; a call for a slot would wait only if all the slots are. */
export function waitedFor(names: readonly string[], { slots }: AcquireOptions, servers: readonly string[], outer: readonly Held[]): Held | undefined {
  const wanted = slots === undefined ? names : Array.from({ length: slots }, (_, i) => `${names[0]}#slot${i + 1}`);
  const mine = wanted.map((name) => outer.find((held) => !held.over && overlap(servers, held.servers) && held.lease.parts.some((part) => part.resource === name)));
  return slots === undefined || !mine.includes(undefined) ? mine.find((held) => held) : undefined;
}

function overlap(a: readonly string[], b: readonly string[]): boolean {
  return a.some((each) => b.includes(each));
}

/** A lease that one `do` took and that those nested in it share. */
export class Session implements Held {
  over = false;
  #inside = 0; // calls of do that have not returned

  readonly signal: AbortSignal;
  #kinds: readonly string[];

  /** `kind` is the result of kindOf for the call that took the lease. */
  constructor(readonly lease: Lease, readonly owner: object, readonly servers: readonly string[], kind: string, scope: AbortController) {
    this.signal = scope.signal;
    this.#kinds = [kind, kindOf(lease.parts.map((part) => part.resource), {})]; // a call may also name the slot as its resource
    live(scope, () => lease.told());
  }

  /** Whether a do of this kind, by that client, joins it. */
  joins(kind: string, owner: object): boolean {
    return !this.over && this.owner === owner && this.#kinds.includes(kind);
  }

  /** Runs the work of a nested do. If `signal` is not the session's but made from it, the work gets a signal that follows both. */
  async join<T>(work: (lease: Lease, signal: AbortSignal) => Promise<T> | T, signal: AbortSignal): Promise<T> {
    if (sessions.get(signal) === this) return this.run(work, signal);
    const scope = new AbortController();
    live(scope, () => this.lease.told());
    const unhook = [this.signal, signal].map((each) => onAbort(each, (reason) => scope.abort(reason)));
    try {
      return await this.run(work, scope.signal);
    } finally {
      unhook.forEach((f) => f());
    }
  }

  /** Runs the work of a do. When the last work of the session has ended, it releases the lease. */
  async run<T>(work: (lease: Lease, signal: AbortSignal) => Promise<T> | T, signal: AbortSignal): Promise<T> {
    this.#inside++;
    sessions.set(signal, this);
    let outcome: { value: T } | { error: unknown };
    try {
      this.lease.check();
      signal.throwIfAborted();
      outcome = { value: await work(this.lease, signal) };
    } catch (error) {
      outcome = { error };
    }
    const loss = await this.#leave();
    if ('error' in outcome) throw loss && isAbort(outcome.error) ? loss : outcome.error;
    if (loss) throw loss;
    return outcome.value;
  }

  /** Resolves to the loss of the lease, if it was lost. */
  async #leave(): Promise<LeaseLost | undefined> {
    if (--this.#inside > 0) return this.lease.loss();
    this.over = true;
    return this.lease.finish(this.signal.aborted ? HURRY : GRACE);
  }
}

/** Whether an error only says that a signal was aborted. */
function isAbort(error: unknown): boolean {
  return error instanceof LeaseLost || (error as { name?: unknown } | undefined)?.name === 'AbortError';
}

/** A text that is the same for calls which may share a lease: they name the same resources, and all or none ask for a slot. */
export function kindOf(names: readonly string[], { slots }: AcquireOptions): string {
  return JSON.stringify([[...names].sort(), slots !== undefined]);
}
