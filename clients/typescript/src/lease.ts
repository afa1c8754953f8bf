/** A lease as the process that holds it knows it. */

import { Calls } from './calls.js';
import { LONGEST_TIMER, now, sleep, tell } from './clock.js';
import { LeaseLost, lost, shown, Unavailable } from './errors.js';
import { live } from './live.js';
import { Signal } from './platform.js';
import { Answer } from './server.js';
import { ABANDON, Bounds, GRACE } from './tries.js';

/** One resource of a lease. */
export interface Part {
  readonly resource: string;
  /** The fencing token, the same for the whole life of the lease. */
  readonly token: number;
  /** The token's fencing_proof, a secret for guards that demand one; "" if the service makes none. */
  readonly proof: string;
}

/** How a lease is kept alive. */
export interface KeepOptions {
  /** Milliseconds before the end of validity from which the lease counts as lost: a tenth of
   * the TTL unless set, half of it at most. */
  margin?: number | undefined;
  /** Called with LeaseLost when the lease is lost, after `signal` was aborted with it. What it throws is dropped. */
  onLost?: ((loss: LeaseLost) => void) | undefined;
}

/** The lease of each signal that a lease has made. */
const leases = new WeakMap<Signal, Lease>();

/** The lease whose `signal` this is. */
export const leaseOf = (signal: Signal): Lease | undefined => leases.get(signal);

const RELEASED = 'it was released';

/** Made once: an error costs as much as the rest of a release. */
const STOPPED = new Error('the lease is kept alive no more');

/** Makes `await using` possible if the compiler's library has it (TypeScript 5.2 and newer). */
export type Disposable = SymbolConstructor extends { readonly asyncDispose: infer S extends symbol } ? { [dispose in S]: () => Promise<void> } : {};

export interface Lease extends Disposable {}

/** A lease. Times are milliseconds on the monotonic clock (`performance.now()`). The validity counts from
 * when the request was sent, so the lease never ends in the service before it ends here. Its id and proofs are secrets, which
 * console.log does not show. */
export class Lease {
  /** The resource: with `slots` the name of the slot; for several resources, their names with ", " between them. */
  readonly resource: string;
  /** The number of the slot, from 1, if the lease was acquired with `slots`; else 0. */
  readonly slot: number;
  /** The time to live in milliseconds. Every extension restarts it. */
  readonly ttl: number;
  #calls: Calls;
  #id: string;
  #parts: readonly Part[];
  #until = 0;
  #margin = 0; // milliseconds before #until from which the lease counts as lost
  #capped = false; // it is near its maximum hold time: no extension makes it last longer
  #gone = ''; // why it has ended; "" while it has not
  #loss: AbortController | undefined; // made when its signal is first wanted
  #onLost: ((loss: LeaseLost) => void) | undefined; // called once
  #first: ReturnType<typeof setTimeout> | undefined; // starts the keep-alive
  #stop: AbortController | undefined; // stops the keep-alive
  #keeping: Promise<void> | undefined;

  /** @internal */
  constructor(calls: Calls, granted: Answer) {
    const { body } = granted;
    this.#calls = calls;
    this.#id = String(body['lease_id']);
    this.ttl = Number(body['ttl_ms']);
    const of = (body['resources'] as Record<string, unknown>[] | undefined) ?? [body];
    this.#parts = of.map(part);
    this.resource = this.#parts.map((p) => p.resource).join(', ');
    this.slot = Number(body['slot'] ?? 0);
    this.#renew(granted);
  }

  /** The fencing token: pass it to storage that refuses smaller ones. A lease of several
   * resources has one for each: see `parts`. */
  get token(): number {
    return this.#only().token;
  }

  /** The fencing_proof of the token, a secret; "" if the service makes none. */
  get proof(): string {
    return this.#only().proof;
  }

  /** Each resource with its token and proof, in the order of their names. */
  get parts(): readonly Part[] {
    return this.#parts;
  }

  /** The lease id, the capability of the lease. It is a secret. */
  get id(): string {
    return this.#id;
  }

  /** When validity ends, as a time of `performance.now()`. From then on another lease may hold the resource. */
  get until(): number {
    return this.#until;
  }

  /** For how many milliseconds the lease is sure to hold; 0 when it may have ended. */
  get validity(): number {
    return this.#gone ? 0 : Math.max(0, this.#until - now());
  }

  /** Whether the lease has ended, or ends within its margin. It reads the clock, so a process that was
   * paused knows at once. */
  get lost(): boolean {
    return this.#whyLost() !== '';
  }

  /** A signal that is aborted, with LeaseLost as its reason, when a lease that is kept alive is lost. Its `aborted` reads the
   * clock, as `lost` does. */
  get signal(): Signal {
    if (!this.#loss) {
      this.#loss = new AbortController();
      leases.set(this.#loss.signal, this);
      live(this.#loss, () => this.told());
    }
    return this.#loss.signal;
  }

  /** Throws LeaseLost if the lease is lost. Call it before each write, and in loops. */
  check(): void {
    const loss = this.loss();
    if (loss) throw loss;
  }

  /** Why the lease is lost; undefined while it is not. */
  loss(): LeaseLost | undefined {
    const why = this.#whyLost();
    return why ? lost(this.resource, why) : undefined;
  }

  /** @internal The loss that signals show; undefined after a release. */
  told(): LeaseLost | undefined {
    return this.#gone === RELEASED ? undefined : this.loss();
  }

  /** Restarts the lease's TTL. Rejects with LeaseLost, which is final, or with Unavailable: then the lease
   * keeps its earlier validity, and the call may be repeated. */
  async extend(): Promise<void> {
    await this.#extend({});
  }

  /** From now on extends the lease whenever a third of its TTL has passed, until it is released or lost.
   * `do` and `lock` keep their leases alive without this call. */
  keepAlive(options: KeepOptions = {}): void {
    if (this.#first !== undefined) return;
    this.#calls.kept.add(this);
    this.#onLost = options.onLost;
    this.#margin = Math.min(options.margin ?? this.ttl / 10, this.ttl / 2);
    // A lease that is released before its first extension costs a timer, and no more.
    this.#first = setTimeout(() => {
      this.#stop = new AbortController();
      this.#keeping = this.#keep(this.#stop.signal);
    }, Math.min(this.#due(), this.#left(), LONGEST_TIMER));
  }

  /** Releases the lease. Rejects with LeaseLost if the lease had ended before, and with Unavailable if the lease
   * may not have been released: repeat the call, or let the TTL end the lease. */
  async release(): Promise<void> {
    await this.#stopKeeping();
    await this.#release(Infinity);
    this.#gone = RELEASED;
  }

  /** Releases a lease after its work, as `do` does, and never rejects. It waits for the release for at most `within`
   * milliseconds, by default a second. After that the release continues in the background; if no server responds, the TTL ends
   * the lease. Resolves to the loss if the lease was lost before. */
  async finish(within = GRACE): Promise<LeaseLost | undefined> {
    if (this.#gone === RELEASED) return undefined;
    await this.#stopKeeping();
    let why = this.#whyLost();
    if (why) this.#lose(why); // no timer has done it yet
    try {
      await this.#release(now() + within);
    } catch (error) {
      if (error instanceof LeaseLost) why ||= 'it had ended when it was released';
      else if (error instanceof Unavailable) this.#calls.inBackground((signal) => this.#release(now() + ABANDON, signal));
    }
    this.#gone = why || RELEASED;
    return why ? lost(this.resource, why) : undefined;
  }

  /** For logs: the tokens, and neither the id nor a proof. */
  toString(): string {
    const tokens = this.#parts.map((p) => `${shown(p.resource)} token ${p.token}`).join(', ');
    const state = this.#gone === RELEASED ? 'released' : this.lost ? 'lost' : `valid for ${Math.floor(this.validity)} ms`;
    return `Lease of ${tokens}, ${state}`;
  }

  /** What console.log shows. */
  [Symbol.for('nodejs.util.inspect.custom')](): string {
    return this.toString();
  }

  #only(): Part {
    const [first, second] = this.#parts;
    if (!first || second) throw new TypeError('a lease of several resources has a token for each: see parts');
    return first;
  }

  /** Notes the validity that an answer gives, counted from when its request was sent. */
  #renew({ sent, body }: Answer): void {
    this.#until = sent + Number(body['waited_ms']) + Number(body['validity_ms']);
    const cap = body['max_hold_remaining_ms'];
    this.#capped = typeof cap === 'number' && cap <= this.ttl;
  }

  /** Milliseconds until the work has to stop. */
  #left(): number {
    return this.#until - this.#margin - now();
  }

  #whyLost(): string {
    if (this.#gone) return this.#gone;
    if (this.#left() > 0) return '';
    return this.#capped ? "it has reached its maximum hold time (maxHold, or the service's FENCELOCK_MAX_HOLD)" : 'it was not extended in time';
  }

  /** Extends the lease. The request names the TTL, because the service would otherwise use the TTL of the last extend, which
   * another process may have sent. */
  async #extend(bounds: Bounds, signal?: Signal): Promise<void> {
    const call = { operation: 'extend', resource: this.resource, method: 'POST', path: '/leases/current/extend', headers: this.#header() };
    this.#renew(await this.#calls.send({ ...call, ...bounds, signal, body: () => ({ ttl_ms: this.ttl }) }));
  }

  async #release(deadline: number, signal?: Signal): Promise<void> {
    await this.#calls.send({ operation: 'release', resource: this.resource, method: 'DELETE', path: '/leases/current', headers: this.#header(), deadline, signal });
  }

  #header(): Record<string, string> {
    return { 'Fencelock-Lease': this.#id };
  }

  async #stopKeeping(): Promise<void> {
    this.#calls.kept.delete(this);
    clearTimeout(this.#first);
    this.#stop?.abort(STOPPED);
    await this.#keeping;
  }

  /** Keeps the lease alive until it is lost, or `stop` is aborted. It never rejects. */
  async #keep(stop: Signal): Promise<void> {
    let due = this.#due();
    while (this.#left() > 0 && !this.#gone) {
      try {
        await sleep(this.#capped ? this.#left() : Math.min(due, this.#left()), stop);
        if (this.#capped || this.#left() <= 0) continue;
        // With this limit there is time to ask every server twice.
        await this.#extend({ limit: this.#left() / (2 * this.#calls.servers.length), deadline: now() + this.#left() }, stop);
        due = this.#due();
      } catch (error) {
        if (stop.aborted) return;
        due = this.ttl / 20; // tries often, so that the lease outlives a short outage
        if (!(error instanceof LeaseLost)) continue;
        if (error.kind === 'max-hold-reached') this.#capped = true; // the lease ends when it would have ended before this extend
        else this.#gone = error.message;
      }
    }
    if (stop.aborted) return;
    this.#calls.kept.delete(this);
    this.#lose(this.#whyLost());
  }

  /** Notes the loss, aborts the signal, and calls onLost if it has not been called. */
  #lose(why: string): void {
    this.#gone = why;
    const loss = lost(this.resource, why);
    this.#loss?.abort(loss);
    const onLost = this.#onLost;
    this.#onLost = undefined;
    tell(onLost, loss);
  }

  /** Milliseconds until a third of the TTL has passed since validity began. */
  #due(): number {
    return Math.max(0, this.#until - now() - (this.ttl * 2) / 3);
  }
}

/** The end of an `await using`: it releases the lease, and rejects with LeaseLost if it was lost meanwhile. */
disposable(Lease, async (lease) => {
  const loss = await lease.finish();
  if (loss) throw loss;
});

/** Makes `await using` call `end` on the objects of a class, if the engine has it (Node 18.18 and newer). */
export function disposable<T extends object>(type: { prototype: T }, end: (what: T) => Promise<void>): void {
  const { asyncDispose } = Symbol as { asyncDispose?: symbol };
  if (!asyncDispose) return;
  const value = function (this: T) {
    return end(this);
  };
  Object.defineProperty(type.prototype, asyncDispose, { value, configurable: true, writable: true });
}

function part(of: Record<string, unknown>): Part {
  const each = { resource: String(of['resource']), token: Number(of['fencing_token']) };
  return Object.defineProperty(each as Part, 'proof', { value: String(of['fencing_proof'] ?? ''), enumerable: false });
}
