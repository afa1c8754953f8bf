import { Disposable, Lease, Part } from './lease.js';
import { AcquireOptions, ClientOptions, LockOptions, WatchOptions } from './options.js';
import { Signal } from './platform.js';
import { Attempt, GuardedRecord, LockState } from './state.js';
export interface Client extends Disposable {
}
/** Talks to one lock service through any of its servers. */
export declare class Client {
    #private;
    /** `servers` are URLs: several in an array, or with commas between them. When one does not
     * answer, the next is asked. */
    constructor(servers: string | readonly string[], options?: ClientOptions);
    /** Runs work under a lease, keeps it alive meanwhile, and releases it. With several resources it takes all or none.
     *
     * The signal that work gets is aborted with LeaseLost when the lease is lost, a margin before its
     * validity ends; with the reason of `options.signal` when that is aborted; with Closed by `close`.
     * `do` waits for the work to end in any case, and then releases the lease. It waits for that a second at most, and a
     * quarter of a second if the signal was aborted; the release then continues in the background.
     *
     * It nests: in the work, with the same client, the same resources, and as `options.signal` the one that work got, or one
     * that is made of it (`AbortSignal.any`), it joins the lease, and its other options are ignored. What would wait for the
     * work around it rejects at once, with Refused of the kind "would-wait-for-itself": without the signal, for some of the
     * resources, or through another client. (A browser knows only what the signal tells.) A slot of a resource and the resource itself are not the same: in the
     * work of a slot, `slots` of the same resource and the slot by its name join it, and the resource itself is another lock.
     *
     * It resolves to what work does. It rejects with LeaseLost if the lease was lost meanwhile, unless work
     * rejected with an error of its own; with Held, Unavailable, Denied or Refused if there was no lease. */
    do<T>(resource: string | readonly string[], work: (lease: Lease, signal: Signal) => Promise<T> | T, options?: LockOptions): Promise<T>;
    /** Stands for the leadership of all that call it for the same resource: who holds its lease
     * leads. It calls `lead`, as `do` calls work, while this process leads. To resign, return
     * from `lead`: `elect` resolves to what it returned, or rejects with what it rejected with, and the
     * next candidate leads at once.
     *
     * When the lease is lost, the signal that `lead` gets is aborted, and `lead` must end. Then, and
     * after an outage, `elect` stands again, and drops what `lead` returned or rejected with. */
    elect<T>(resource: string, lead: (lease: Lease, signal: Signal) => Promise<T> | T, options?: LockOptions): Promise<T>;
    /** Tells who holds a resource, as `inspect` does: now, and after each change; undefined while it is
     * unknown, because no server responds or there is no quorum. A change is told as soon as the service's events show it,
     * or after 10 s; after 1 s while no server sends events. Tokens never fall; a holder that
     * comes and goes between two looks is left out. It ends with the loop over it, and rejects with
     * the error of any other refusal, and with Closed. */
    watch(resource: string, options?: WatchOptions): AsyncGenerator<LockState | undefined, void, undefined>;
    /** Takes a lease that is kept alive until it is released, for `await using`:
     * at the end of the block it is released. `lease.signal` and `lease.check()` show its loss.
     *
     * Pass `lease.signal` on as `options.signal` to what runs under the lease: a call that would wait for it then rejects at once, with
     * Refused of the kind "would-wait-for-itself". Without it a lease of `lock` is not known to belong to the caller, and a second one waits
     * for its release, as for anybody's: give it a `wait`, or use `do`, whose work is known. */
    lock(resource: string | readonly string[], options?: LockOptions): Promise<Lease>;
    /** Takes a lease that is not kept alive: the caller extends and releases it. */
    acquire(resource: string | readonly string[], options?: AcquireOptions): Promise<Lease>;
    /** Looks up a live lease by its lease id, for a process that works under a lease which another
     * one acquired. Rejects with LeaseLost if it has ended. */
    lease(id: string): Promise<Lease>;
    /** Whether a resource is held, by which holder, for how much longer, and its queue. */
    inspect(resource: string): Promise<LockState>;
    /** Ends the lease of a resource that has the fencing token, which `inspect` shows, and never a
     * later one. That is for administrators; the holder learns it from its next request. Rejects with
     * Refused of the kind "lock-not-held" if the resource is free, and with OtherLease if another
     * lease holds it. */
    breakLock(resource: string, token: number): Promise<void>;
    /** Ends whatever lease holds a resource. After Unavailable the lease may have ended, and another
     * `breakAny` may end the next one: `inspect` first. */
    breakAny(resource: string): Promise<void>;
    /** The held resources that begin with a prefix, in no particular order. A lock that is taken
     * or released meanwhile may be missed or come twice. */
    list(prefix?: string): AsyncGenerator<LockState, void, undefined>;
    /** Reads a guarded record, and claims nothing: before a write use `claimRecord`. A record that was never
     * written has version 0. */
    readRecord(resource: string): Promise<GuardedRecord>;
    /** Claims a guarded record for a lease, and reads it: from then on no smaller token writes it.
     * Rejects with StaleToken. `lease` is of one resource; of several, pass one of its parts. */
    claimRecord(lease: Lease | Part): Promise<GuardedRecord>;
    /** Writes a JSON value under the token of a lease. Rejects with StaleToken, and nothing is written. It is not sent again
     * once a server may have done it: after Unavailable it may be written, now or later. */
    writeRecord(lease: Lease | Part, value: unknown): Promise<GuardedRecord>;
    /** Deletes the value of a record under the token of a lease, as `writeRecord` writes it: its history and its highest token stay. */
    deleteRecord(lease: Lease | Part): Promise<GuardedRecord>;
    /** The guarded records whose resources begin with a prefix, in the order of their bytes and without their values. */
    records(prefix?: string): AsyncGenerator<GuardedRecord, void, undefined>;
    /** The newest hundred writes and claims of a record, refused ones too, the newest first. */
    history(resource: string): AsyncGenerator<Attempt, void, undefined>;
    /** Ends a client: waits for a lease reject with Closed, the signals of work under `do` are aborted
     * with it, and `close` waits until the work has ended and released its leases, until those of `lock` are released, and until
     * what requests that were given up may have been granted is released: for three seconds at most after the work has ended, so that a program ends
     * though no server responds. TTLs end what is left. Every later call rejects with Closed. */
    close(): Promise<void>;
}
