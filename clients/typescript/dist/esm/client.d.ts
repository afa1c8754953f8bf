import { Bearer, Retry } from './calls.js';
import { Disposable, KeepOptions, Lease, Part } from './lease.js';
import { Fetch } from './server.js';
import { Attempt, GuardedRecord, LockState } from './state.js';
/** Settings of a client; times in milliseconds. */
export interface ClientOptions {
    /** The caller's credential, or what is called for it before each request. White space around it is dropped. */
    bearer?: Bearer | undefined;
    /** A public label that leases show. */
    holder?: string | undefined;
    /** The most that one try at one server takes, beyond what it waits in the queue; 5000. A try ends
     * earlier when its answer is overdue by what answers have taken: the next server is asked then. */
    timeout?: number | undefined;
    /** For how long a call is repeated that fails, from its first failure: that no server responds,
     * or none has a quorum; 15000. Then it rejects with Unavailable. Every server is asked at least
     * once; a wait in the queue is no failure. An acquire with `wait` ends a second after it at most, whatever
     * the servers do, and a lease that is kept alive is extended for as long as it lives. */
    patience?: number | undefined;
    /** How long one request waits in the queue at the longest; 45000. A longer wait is several
     * requests, which keep the place. Whole seconds, less than the time limits of proxies: 60 in
     * nginx and most load balancers of clouds, 50 in Debian's HAProxy, 15 in Envoy. */
    poll?: number | undefined;
    /** How many requests may be under way to a server before further ones (acquires with a `wait` of 0, extends and
     * releases) gather for up to 5 ms, to be sent together in one POST /locks/batch; 2. Each has its own outcome and time
     * limit. 0 sends every such call in a batch, and a negative number none. */
    batchAfter?: number | undefined;
    /** Called for every try that failed and is repeated. */
    onRetry?: ((retry: Retry) => void) | undefined;
    /** Sends the requests: a fetch with another dispatcher, for TLS of one's own. */
    fetch?: Fetch | undefined;
}
/** What to acquire; times in milliseconds. What is left out is left to the service. */
export interface AcquireOptions {
    /** How long the lease lives unless it is extended. */
    ttl?: number | undefined;
    /** How long to wait in the queue: 0 tries once; without it, for as long as it takes. */
    wait?: number | undefined;
    /** From the grant, for how long the resource stays taken though it is released; at most the TTL. */
    minHold?: number | undefined;
    /** From the grant, after which the lease is not extended. */
    maxHold?: number | undefined;
    /** Takes one of this many slots of the resource, 1 to 32, which `lease.resource` names and
     * `lease.slot` numbers, each with tokens of its own: a semaphore. */
    slots?: number | undefined;
    /** A public label that the lease shows instead of the client's. */
    holder?: string | undefined;
    /** A JSON value that the lease shows to all callers. */
    metadata?: unknown;
    /** Aborted, a wait for the lease ends with the signal's reason. */
    signal?: AbortSignal | undefined;
}
export declare type LockOptions = AcquireOptions & KeepOptions;
export interface WatchOptions {
    /** Aborted, the watch rejects with the signal's reason. */
    signal?: AbortSignal | undefined;
}
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
     * `do` waits for the work to end in any case, and then releases the lease.
     *
     * It nests: in the work, with the same client, the same resources, and as `options.signal` the one that work got, or one
     * that is made of it (`AbortSignal.any`), it joins the lease, and its other options are ignored. What would wait for the
     * work around it rejects at once, with Refused of the kind "would-wait-for-itself": without the signal, for some of the
     * resources, or through another client. (A browser knows only what the signal tells.) A slot of a resource and the resource itself are not the same.
     *
     * It resolves to what work does. It rejects with LeaseLost if the lease was lost meanwhile, unless work
     * rejected with an error of its own; with Held, Unavailable, Denied or Refused if there was no lease. */
    do<T>(resource: string | readonly string[], work: (lease: Lease, signal: AbortSignal) => Promise<T> | T, options?: LockOptions): Promise<T>;
    /** Stands for the leadership of all that call it for the same resource: who holds its lease
     * leads. It calls `lead`, as `do` calls work, while this process leads. To resign, return
     * from `lead`: `elect` resolves to what it returned, or rejects with what it rejected with, and the
     * next candidate leads at once.
     *
     * When the lease is lost, the signal that `lead` gets is aborted, and `lead` must end. Then, and
     * after an outage, `elect` stands again, and drops what `lead` returned or rejected with. */
    elect<T>(resource: string, lead: (lease: Lease, signal: AbortSignal) => Promise<T> | T, options?: LockOptions): Promise<T>;
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
     * what requests that were given up may have been granted is released. Every later call rejects with Closed. */
    close(): Promise<void>;
}
