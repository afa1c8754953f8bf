import { Call, Calls } from './calls.js';
import { now, onAbort, sleep, tell } from './clock.js';
import { Held as HeldAround, inside } from './around.js';
import { BATCH_AFTER, Late } from './batch.js';
import { about, Closed, FencelockError, Held, LeaseLost, shown, Unavailable, unavailable, waitsForItself } from './errors.js';
import { Events } from './events.js';
import { randomKey } from './key.js';
import { disposable, Disposable, Lease, Part } from './lease.js';
import { AcquireOptions, checkClientOptions, checkOptions, ClientOptions, LockOptions, namesOf, refuseUnknown, WatchOptions } from './options.js';
import { Signal } from './platform.js';
import { encoded, ofBreaks, ofPart, ofRecord, ofResource } from './requests.js';
import { parse } from './server.js';
import { heldAround, kindOf, Session, taken, waitedFor } from './session.js';
import { Attempt, attempt, GuardedRecord, guardedRecord, LockState, lockState } from './state.js';
import { ABANDON, CLOSE_GRACE, FIRST_PAUSE, GRACE, Tries } from './tries.js';
import { Watched } from './watched.js';

export interface Client extends Disposable {}

/** Talks to one lock service through any of its servers. */
export class Client {
  #calls: Calls;
  #holder: string;
  #closed: Closed | undefined;
  #scopes = new Set<AbortController>(); // one for each wait and each work; close aborts them
  #watches = new Set<Events>(); // close ends their streams

  /** `servers` is one URL, or several in an array or with commas between them. When a server does not
   * respond, the client asks the next. Throws TypeError or RangeError for a wrong URL or option. */
  constructor(servers: string | readonly string[], options: ClientOptions = {}) {
    checkClientOptions(options);
    const { bearer, holder = '', timeout = 5000, patience = 15_000, poll = 45_000, batchAfter = BATCH_AFTER, onRetry, fetch = globalThis.fetch.bind(globalThis) } = options;
    this.#calls = new Calls({ servers, bearer, timeout, patience, poll, batchAfter, onRetry, fetch });
    this.#holder = holder;
  }

  /** Runs work under a lease, keeps it alive meanwhile, and releases it. With several resources it takes all or none.
   *
   * The signal that work gets is aborted with LeaseLost when the lease is lost, `margin` before its
   * validity ends; with the reason of `options.signal` when that is aborted; and with Closed by `close`.
   * In each case `do` waits for the work to end, and then releases the lease. It waits for the release for a second at most, or
   * for a quarter of a second if the signal was aborted. After that the release continues in the background.
   *
   * Calls nest. A `do` inside the work joins the lease if it has the same client, the same resources, and as `options.signal`
   * the signal that work got, or one made from it (`AbortSignal.any`). Its other options are ignored then. Any other call that
   * would wait for the work around it rejects at once, with Refused of the kind "would-wait-for-itself": a call without the
   * signal, for some of the resources, or through another client. (In a browser the client knows only what the signal shows.)
   * A slot of a resource and the resource itself are different locks: inside the work of a slot, a call with `slots` of the same
   * resource joins, and so does a call that names the slot as its resource; a call for the resource itself takes another lock.
   *
   * Resolves to the result of work. Rejects with LeaseLost if the lease was lost meanwhile, unless work
   * rejected with an error of its own; with Held, Unavailable, Denied or Refused if no lease was granted; and with Closed
   * after `close`. Without a lease, work is not called. */
  async do<T>(resource: string | readonly string[], work: (lease: Lease, signal: Signal) => Promise<T> | T, options: LockOptions = {}): Promise<T> {
    const names = namesOf(resource);
    checkOptions(options, names);
    const kind = kindOf(names, options);
    const outer = heldAround(options.signal);
    const joined = options.signal && outer.find((held): held is Session => held instanceof Session && held.joins(kind, this));
    if (joined) return joined.join(work, options.signal as Signal);
    return this.#scoped(options.signal, async (scope) => {
      const lease = await this.#acquire(names, options, scope.signal, outer);
      lease.keepAlive({
        ...options,
        onLost: (loss) => {
          scope.abort(loss);
          tell(options.onLost, loss);
        },
      });
      this.#calls.kept.delete(lease); // it is released when the work has ended
      const session = new Session(lease, this, this.#urls(), kind, scope);
      taken.set(lease, session);
      return inside(session, () => session.run(work, scope.signal));
    });
  }

  /** Takes part in the election of a leader among all processes that call it for the same resource: the process that holds
   * the lease leads. `elect` calls `lead`, as `do` calls work, while this process leads. To resign, return
   * from `lead`: `elect` then resolves to its result, or rejects with its error, and the
   * next candidate leads at once.
   *
   * When the lease is lost, the signal that `lead` gets is aborted, and `lead` must end. `elect` then drops the result or error
   * of `lead`, and becomes a candidate again. It stays a candidate through outages. */
  async elect<T>(resource: string, lead: (lease: Lease, signal: Signal) => Promise<T> | T, options: LockOptions = {}): Promise<T> {
    for (;;) {
      let led = false;
      let lost = false;
      const work = async (lease: Lease, signal: Signal): Promise<T> => {
        led = true;
        try {
          return await lead(lease, signal);
        } finally {
          lost = lease.lost;
        }
      };
      try {
        return await this.do(resource, work, options);
      } catch (error) {
        const unled = !led && (error instanceof Unavailable || error instanceof LeaseLost);
        if (!lost && !unled) throw error;
      }
      await sleep(FIRST_PAUSE * (1 + Math.random()), options.signal);
    }
  }

  /** Yields who holds a resource, as `inspect` does: now, and after each change. It yields undefined while the holder is
   * unknown, because no server responds or there is no quorum. It looks again as soon as the service's events show a change,
   * and every 10 s, or every second while no server sends events. Its tokens never fall. A holder that
   * comes and goes between two looks is left out. The watch ends with the loop over it. It rejects with
   * the error of any other refusal, and with Closed. */
  async *watch(resource: string, options: WatchOptions = {}): AsyncGenerator<LockState | undefined, void, undefined> {
    refuseUnknown(options, ['signal']);
    const { signal } = options;
    const watched = new Watched();
    const events = new Events(this.#calls, resource);
    this.#watches.add(events);
    try {
      for (;;) {
        const lock = await this.#scoped(signal, (scope) => this.#look(resource, scope.signal));
        if (watched.isNews(lock)) yield lock;
        await this.#scoped(signal, (scope) => events.wait(scope.signal));
      }
    } finally {
      events.close();
      this.#watches.delete(events);
    }
  }

  async #look(resource: string, signal: Signal): Promise<LockState | undefined> {
    try {
      return await this.#inspect(resource, signal);
    } catch (error) {
      if (error instanceof Unavailable) return undefined;
      throw error;
    }
  }

  /** Takes a lease and keeps it alive until it is released. With `await using`, the end of the block
   * releases it. `lease.signal` and `lease.check()` show its loss. Rejects as `acquire` does.
   *
   * Pass `lease.signal` as `options.signal` to the calls under the lease: a call that would wait for this lease then rejects at
   * once, with Refused of the kind "would-wait-for-itself". Without that signal the client does not know that the caller has the
   * lease, so a second `lock` of the resource waits until the first is released. Give it a `wait`, or use `do`, which recognizes
   * the calls inside its work. */
  async lock(resource: string | readonly string[], options: LockOptions = {}): Promise<Lease> {
    const lease = await this.acquire(resource, options);
    if (this.#closed) {
      await lease.finish();
      throw this.#closed;
    }
    lease.keepAlive(options);
    return lease;
  }

  /** Takes a lease that is not kept alive: the caller extends and releases it. Rejects with Held, Unavailable, Denied, Refused
   * or Closed. */
  async acquire(resource: string | readonly string[], options: AcquireOptions = {}): Promise<Lease> {
    const names = namesOf(resource);
    checkOptions(options, names);
    const outer = heldAround(options.signal);
    const lease = await this.#scoped(options.signal, (scope) => this.#acquire(names, options, scope.signal, outer));
    taken.set(lease, { owner: this, servers: this.#urls(), lease, get over() { return lease.lost; } });
    return lease;
  }

  /** Looks up a live lease by its lease id, for a process that works under a lease which another
   * process acquired. Rejects with LeaseLost if it has ended. */
  async lease(id: string): Promise<Lease> {
    const headers = { 'Fencelock-Lease': id };
    return new Lease(this.#calls, await this.#calls.send({ operation: 'look up', resource: '', method: 'GET', path: '/leases/current', headers }));
  }

  /** Whether a resource is held, by which holder, for how much longer, and its queue. */
  inspect(resource: string): Promise<LockState> {
    return this.#inspect(resource);
  }

  async #inspect(resource: string, signal?: Signal): Promise<LockState> {
    const { body } = await this.#calls.send({ ...ofResource('inspect', resource), signal });
    return lockState(body);
  }

  /** Ends the lease of a resource whose fencing token is `token` (`inspect` shows it), never a
   * later lease. It is for administrators; the holder learns of it from its next request. Safe to repeat. Rejects with
   * Refused of the kind "lock-not-held" if the resource is free, and with OtherLease if another
   * lease holds it. */
  async breakLock(resource: string, token: number): Promise<void> {
    await this.#calls.send({ ...ofBreaks(resource, { fencing_token: token }), breaks: token });
  }

  /** Ends whatever lease holds a resource. After Unavailable the lease may have ended, and a second
   * `breakAny` could end the next lease: `inspect` the resource first. */
  async breakAny(resource: string): Promise<void> {
    await this.#calls.send({ ...ofBreaks(resource, { any: true }), once: true });
  }

  /** The held resources that begin with a prefix, in no particular order. A lock that is taken
   * or released meanwhile may be missed or come twice. */
  list(prefix = ''): AsyncGenerator<LockState, void, undefined> {
    return this.#pages('list', '/locks', { prefix }, 'locks', lockState);
  }

  /** Reads a guarded record without a claim, so an earlier holder may still write it. To read before a write, use
   * `claimRecord`. A record that was never written has version 0. */
  async readRecord(resource: string): Promise<GuardedRecord> {
    try {
      return guardedRecord((await this.#calls.send(ofRecord('read', resource, 'GET'))).body);
    } catch (error) {
      if (FencelockError.is(error) && error.kind === 'record-not-found') return guardedRecord({ resource });
      throw error;
    }
  }

  /** Claims a guarded record for a lease, and reads it. From then on the record refuses smaller tokens.
   * Rejects with StaleToken if the record has seen a larger token. Of a lease of several resources, pass one of its `parts`. */
  async claimRecord(lease: Lease | Part): Promise<GuardedRecord> {
    return guardedRecord((await this.#calls.send(ofPart('claim', lease, 'POST'))).body);
  }

  /** Writes a JSON value under the token of a lease. Rejects with StaleToken if the record has seen a larger token; nothing is
   * written then. The client does not send a write again that may have taken effect: after Unavailable the value may be
   * written already, or be written later. */
  async writeRecord(lease: Lease | Part, value: unknown): Promise<GuardedRecord> {
    if (JSON.stringify(value) === undefined) throw new TypeError(`a record's value must be JSON, not ${typeof value}`);
    return guardedRecord((await this.#calls.send({ ...ofPart('write', lease, 'PUT'), body: () => value, once: true })).body);
  }

  /** Deletes the value of a record under the token of a lease, with the errors of `writeRecord`. The record's history and its
   * highest token stay. */
  async deleteRecord(lease: Lease | Part): Promise<GuardedRecord> {
    return guardedRecord((await this.#calls.send({ ...ofPart('delete', lease, 'DELETE'), once: true })).body);
  }

  /** The guarded records whose resources begin with a prefix, in byte order of their names, without their values. */
  records(prefix = ''): AsyncGenerator<GuardedRecord, void, undefined> {
    return this.#pages('records', '/guarded', { prefix }, 'records', guardedRecord);
  }

  /** The newest hundred writes and claims of a record, including refused ones, the newest first. */
  history(resource: string): AsyncGenerator<Attempt, void, undefined> {
    return this.#pages('history', '/history', { resource }, 'attempts', attempt);
  }

  /** Closes the client. Calls that wait for a lease reject with Closed, and the signals of work under `do` are aborted with it.
   * `close` waits until the work has ended and released its leases. It also releases the leases of `lock`, and any lease that
   * a request was granted after its caller had given up. It waits for these releases for at most three seconds after the work
   * has ended, so that a program ends even if no server responds. TTLs end what is left. Every later call rejects with Closed. */
  async close(): Promise<void> {
    this.#closed ??= new Closed('this client is closed');
    for (const scope of this.#scopes) scope.abort(this.#closed);
    for (const events of this.#watches) events.close();
    for (const lease of [...this.#calls.kept]) this.#calls.inBackground(() => lease.finish());
    await this.#calls.idle(CLOSE_GRACE);
    this.#calls.closed = this.#closed;
  }

  #urls(): readonly string[] {
    return this.#calls.servers.map((server) => server.url);
  }

  /** Refuses a call that would wait for the work around it. A call with a `wait` of 0 is sent: the service tells it who holds
   * the resource. */
  #refuseToWait(names: readonly string[], options: AcquireOptions, outer: readonly HeldAround[]): void {
    if (options.wait === 0) return;
    const held = waitedFor(names, options, this.#urls(), outer);
    if (held) throw waitsForItself(names, held.lease.parts.map((part) => part.resource), held instanceof Session);
  }

  /** Acquires a lease, or rejects a second after the wait (or the call's patience) has passed, whatever the servers do. */
  async #acquire(names: readonly string[], options: AcquireOptions, signal: Signal, outer: readonly HeldAround[]): Promise<Lease> {
    this.#refuseToWait(names, options, outer);
    const waitUntil = now() + Math.max(options.wait ?? Infinity, 0);
    for (;;) {
      const lease = await this.#granted(names, options, waitUntil, signal);
      if (lease.validity > 0) return lease;
      // The lease expired on its way: this process was paused, or the response was late. Use what is left of the wait to try again.
      await lease.finish();
      if (now() >= waitUntil) throw unavailable(`acquire ${lease.resource}`, lease.resource, 'the lease expired before the response arrived; a longer ttl may help');
    }
  }

  async #granted(names: readonly string[], options: AcquireOptions, waitUntil: number, signal: Signal): Promise<Lease> {
    const call = await this.#acquisition(names, options);
    const { patience } = options;
    const tries = this.#calls.tries({ waitUntil, deadline: Math.max(waitUntil, now() + (patience ?? 0)) + GRACE }, patience);
    try {
      const answer = await this.#calls.send({ ...call, signal }, tries);
      for (const late of tries.late) this.#calls.inBackground((signal) => this.#endLate(late, call, signal, answer.body));
      return new Lease(this.#calls, answer);
    } catch (error) {
      for (const late of tries.late) this.#calls.inBackground((stop) => this.#endLate(late, call, stop));
      if (tries.ambiguous || tries.underWay || tries.queued) this.#calls.inBackground((stop) => this.#abandon(call, stop));
      const timedOut = tries.number > 0 && signal.aborted && error === signal.reason && (error as { name?: unknown } | undefined)?.name === 'TimeoutError';
      throw timedOut ? await this.#ended(names, options, tries, error) : error;
    }
  }

  /** The error for a wait that a timeout has ended: Held if another lease has the resource, Unavailable if no server responded.
   * To know which, it inspects the resources, for a second at most. */
  async #ended(names: readonly string[], { slots }: AcquireOptions, tries: Tries, timeout: unknown): Promise<FencelockError> {
    const what = `acquire ${shown(names.join(', '))}`;
    const resource = names.join(', ');
    if (tries.last) return Object.assign(unavailable(what, resource, `the time is over: ${tries.last.message}`), { kind: tries.last.kind, status: tries.last.status, url: tries.last.url, cause: timeout });
    const look = async (name: string) => lockState((await this.#calls.send({ ...ofResource('inspect', name), deadline: now() + GRACE, once: true, quiet: true })).body);
    const error = about(new Held(`${what}: it is held, and the time is over`), resource);
    error.kind = 'wait-timeout';
    try {
      const seen = await Promise.all(names.map((name) => look(slots === undefined ? name : `${name}#slot1`)));
      const lock = seen.find((each) => each.held);
      if (lock) Object.assign(error, { resource: lock.resource, holder: lock.holder, token: lock.token, remaining: lock.remaining });
    } catch (failure) {
      if (failure instanceof Unavailable) return Object.assign(unavailable(what, resource, `no response in time: ${failure.message}`), { cause: timeout });
    }
    return Object.assign(error, { cause: timeout });
  }

  /** Runs f with a scope that `signal` and `close` abort. `close` waits until f has ended. */
  async #scoped<T>(signal: Signal | undefined, f: (scope: AbortController) => Promise<T>): Promise<T> {
    if (this.#closed) throw this.#closed;
    const scope = new AbortController();
    const unhook = onAbort(signal, (reason) => scope.abort(reason));
    this.#scopes.add(scope);
    try {
      return await this.#calls.counted(() => f(scope));
    } finally {
      unhook();
      this.#scopes.delete(scope);
    }
  }

  /** The call of an acquire. All its tries have the same idempotency key, on every server. */
  async #acquisition(names: readonly string[], options: AcquireOptions): Promise<Call> {
    const { ttl, minHold, maxHold, slots, holder = this.#holder, metadata } = options;
    const milliseconds = (n: number | undefined) => (n === undefined ? undefined : Math.round(n));
    const body = {
      ...(names.length === 1 ? { resource: names[0] } : { resources: names }),
      ttl_ms: milliseconds(ttl),
      min_hold_ms: milliseconds(minHold),
      max_hold_ms: milliseconds(maxHold),
      slots,
      holder: holder || undefined,
      metadata,
    };
    return {
      operation: 'acquire',
      resource: names.join(', '),
      method: 'POST',
      path: '/locks',
      headers: { 'Idempotency-Key': await randomKey() },
      body: (wait) => (wait ? { ...body, wait_ms: wait } : body),
    };
  }

  /** Ends what an acquire may have got whose caller has given up: a lease, or a place in the queue. */
  async #abandon(call: Call, signal: Signal): Promise<void> {
    await this.#calls.send({ ...call, operation: 'cancel', path: '/cancel', deadline: now() + ABANDON, quiet: true, signal });
  }

  /** Releases the lease that a try in a batch was granted after its call had given that try up. It spares the lease `got`, which
   * another try of the call got under the same key. */
  async #endLate(late: Late, call: Call, signal: Signal, got?: Readonly<Record<string, unknown>>): Promise<void> {
    let granted: Record<string, unknown> | undefined;
    try {
      const reply = await late;
      granted = reply && reply.status < 300 ? parse(reply.text) : undefined;
    } catch {
      if (!got) await this.#abandon(call, signal);
    }
    if (!granted || (got && tokensOf(granted) === tokensOf(got))) return;
    const headers = { 'Fencelock-Lease': String(granted['lease_id']) };
    await this.#calls.send({ operation: 'release', resource: call.resource, method: 'DELETE', path: '/leases/current', headers, deadline: now() + ABANDON, quiet: true, signal });
  }

  async *#pages<T>(
    operation: string, path: string, query: Record<string, string>, member: string, read: (of: Record<string, unknown>) => T,
  ): AsyncGenerator<T, void, undefined> {
    const resource = Object.values(query).join();
    encoded(resource);
    const search = new URLSearchParams({ ...query, limit: '1000' });
    for (;;) {
      const { body } = await this.#calls.send({ operation, resource, method: 'GET', path: `${path}?${search}` });
      for (const each of body[member] as Record<string, unknown>[]) yield read(each);
      if (!body['next_cursor']) return;
      search.set('cursor', String(body['next_cursor']));
    }
  }
}

disposable(Client, (client) => client.close());

/** The fencing tokens of a lease. They tell one grant from another under the same key. */
function tokensOf(lease: Readonly<Record<string, unknown>>): string {
  const parts = (lease['resources'] as Record<string, unknown>[] | undefined) ?? [lease];
  return parts.map((each) => each['fencing_token']).join();
}
