import { Disposable, Lease, Part } from './lease.js';
import { AcquireOptions, ClientOptions, LockOptions, WatchOptions } from './options.js';
import { Signal } from './platform.js';
import { Attempt, GuardedRecord, LockState } from './state.js';
export interface Client extends Disposable {
}
/** Talks to one lock service through any of its servers. */
export declare class Client {
    #private;
    /** `servers` is one URL, or several in an array or with commas between them. When a server does not
     * respond, the client asks the next. Throws TypeError or RangeError for a wrong URL or option. */
    constructor(servers: string | readonly string[], options?: ClientOptions);
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
    do<T>(resource: string | readonly string[], work: (lease: Lease, signal: Signal) => Promise<T> | T, options?: LockOptions): Promise<T>;
    /** Takes part in the election of a leader among all processes that call it for the same resource: the process that holds
     * the lease leads. `elect` calls `lead`, as `do` calls work, while this process leads. To resign, return
     * from `lead`: `elect` then resolves to its result, or rejects with its error, and the
     * next candidate leads at once.
     *
     * When the lease is lost, the signal that `lead` gets is aborted, and `lead` must end. `elect` then drops the result or error
     * of `lead`, and becomes a candidate again. It stays a candidate through outages. */
    elect<T>(resource: string, lead: (lease: Lease, signal: Signal) => Promise<T> | T, options?: LockOptions): Promise<T>;
    /** Yields who holds a resource, as `inspect` does: now, and after each change. It yields undefined while the holder is
     * unknown, because no server responds or there is no quorum. It looks again as soon as the service's events show a change,
     * and every 10 s, or every second while no server sends events. Its tokens never fall. A holder that
     * comes and goes between two looks is left out. The watch ends with the loop over it. It rejects with
     * the error of any other refusal, and with Closed. */
    watch(resource: string, options?: WatchOptions): AsyncGenerator<LockState | undefined, void, undefined>;
    /** Takes a lease and keeps it alive until it is released. With `await using`, the end of the block
     * releases it. `lease.signal` and `lease.check()` show its loss. Rejects as `acquire` does.
     *
     * Pass `lease.signal` as `options.signal` to the calls under the lease: a call that would wait for this lease then rejects at
     * once, with Refused of the kind "would-wait-for-itself". Without that signal the client does not know that the caller has the
     * lease, so a second `lock` of the resource waits until the first is released. Give it a `wait`, or use `do`, which recognizes
     * the calls inside its work. */
    lock(resource: string | readonly string[], options?: LockOptions): Promise<Lease>;
    /** Takes a lease that is not kept alive: the caller extends and releases it. Rejects with Held, Unavailable, Denied, Refused
     * or Closed. */
    acquire(resource: string | readonly string[], options?: AcquireOptions): Promise<Lease>;
    /** Looks up a live lease by its lease id, for a process that works under a lease which another
     * process acquired. Rejects with LeaseLost if it has ended. */
    lease(id: string): Promise<Lease>;
    /** Whether a resource is held, by which holder, for how much longer, and its queue. */
    inspect(resource: string): Promise<LockState>;
    /** Ends the lease of a resource whose fencing token is `token` (`inspect` shows it), never a
     * later lease. It is for administrators; the holder learns of it from its next request. Safe to repeat. Rejects with
     * Refused of the kind "lock-not-held" if the resource is free, and with OtherLease if another
     * lease holds it. */
    breakLock(resource: string, token: number): Promise<void>;
    /** Ends whatever lease holds a resource. After Unavailable the lease may have ended, and a second
     * `breakAny` could end the next lease: `inspect` the resource first. */
    breakAny(resource: string): Promise<void>;
    /** The held resources that begin with a prefix, in no particular order. A lock that is taken
     * or released meanwhile may be missed or come twice. */
    list(prefix?: string): AsyncGenerator<LockState, void, undefined>;
    /** Reads a guarded record without a claim, so an earlier holder may still write it. To read before a write, use
     * `claimRecord`. A record that was never written has version 0. */
    readRecord(resource: string): Promise<GuardedRecord>;
    /** Claims a guarded record for a lease, and reads it. From then on the record refuses smaller tokens.
     * Rejects with StaleToken if the record has seen a larger token. Of a lease of several resources, pass one of its `parts`. */
    claimRecord(lease: Lease | Part): Promise<GuardedRecord>;
    /** Writes a JSON value under the token of a lease. Rejects with StaleToken if the record has seen a larger token; nothing is
     * written then. The client does not send a write again that may have taken effect: after Unavailable the value may be
     * written already, or be written later. */
    writeRecord(lease: Lease | Part, value: unknown): Promise<GuardedRecord>;
    /** Deletes the value of a record under the token of a lease, with the errors of `writeRecord`. The record's history and its
     * highest token stay. */
    deleteRecord(lease: Lease | Part): Promise<GuardedRecord>;
    /** The guarded records whose resources begin with a prefix, in byte order of their names, without their values. */
    records(prefix?: string): AsyncGenerator<GuardedRecord, void, undefined>;
    /** The newest hundred writes and claims of a record, including refused ones, the newest first. */
    history(resource: string): AsyncGenerator<Attempt, void, undefined>;
    /** Closes the client. Calls that wait for a lease reject with Closed, and the signals of work under `do` are aborted with it.
     * `close` waits until the work has ended and released its leases. It also releases the leases of `lock`, and any lease that
     * a request was granted after its caller had given up. It waits for these releases for at most three seconds after the work
     * has ended, so that a program ends even if no server responds. TTLs end what is left. Every later call rejects with Closed. */
    close(): Promise<void>;
}
