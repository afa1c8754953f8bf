/** The options of a client and of its calls, and the checks of them before anything is sent. */
import { Unavailable } from './errors.js';
import { KeepOptions } from './lease.js';
import { Fetch, Signal } from './platform.js';
/** Reports that a try of a call has failed and that the call will be repeated. */
export interface Retry {
    /** The error of the last try. */
    readonly error: Unavailable;
    /** The number of tries so far. */
    readonly tries: number;
    /** For how many milliseconds the call has failed without a success between. */
    readonly failing: number;
    /** Milliseconds before the next try. */
    readonly pause: number;
}
export declare type Bearer = string | (() => string | Promise<string>);
/** Settings of a client; times in milliseconds. */
export interface ClientOptions {
    /** The caller's credential, or a function that returns it and is called before each request. White space around the
     * credential is dropped. If the function fails, or takes longer than `timeout`, that counts as a failed try, and the call is
     * repeated for as long as its patience. The last failure of the function is the `cause` of the Unavailable. */
    bearer?: Bearer | undefined;
    /** A public label that leases show. */
    holder?: string | undefined;
    /** The longest time that one try at one server takes, in addition to its wait in the queue; 5000. A try ends
     * earlier when its response takes much longer than recent responses did; the client then asks the next server. */
    timeout?: number | undefined;
    /** For how long a failing call is repeated, counted from its first failure; 15000. A call fails while no server responds,
     * or none has a quorum. After this time it rejects with Unavailable, but not before it has asked every server
     * once. To wait in the queue is not a failure. An acquire with `wait` ends at most a second after its wait, whatever
     * the servers do. The extends that keep a lease alive are repeated for as long as the lease lives. */
    patience?: number | undefined;
    /** The longest time that one request waits in the queue; 45000. A longer wait takes several
     * requests, which keep the place in the queue. It must be 1000 at least, and is rounded down to whole seconds. Choose less
     * than the time limits of proxies: 60 s in nginx and most load balancers of clouds, 50 s in Debian's HAProxy, 15 s in Envoy. */
    poll?: number | undefined;
    /** How many requests may be under way to a server before further ones (acquires with a `wait` of 0, extends and
     * releases) gather for up to 5 ms and are sent together in one POST /locks/batch; 2. Each call in a batch has its own outcome
     * and time limit. 0 sends every such call in a batch, and a negative number sends none in one. */
    batchAfter?: number | undefined;
    /** Called for every try that failed and is repeated. What it throws is dropped. */
    onRetry?: ((retry: Retry) => void) | undefined;
    /** The function that sends the requests; the global fetch. For TLS settings of your own, pass a fetch with another dispatcher. */
    fetch?: Fetch | undefined;
}
/** How to acquire a lease; times in milliseconds. For an option that is left out, the service's default applies, unless the
 * option says otherwise. */
export interface AcquireOptions {
    /** How long the lease lives unless it is extended: 100 to 86400000 (a day). */
    ttl?: number | undefined;
    /** How long to wait in the queue: 0 tries once; without it, for as long as it takes. */
    wait?: number | undefined;
    /** For how long this call is repeated while it fails, instead of the client's patience. A call with a shorter `wait`, or with
     * a `wait` of 0, is repeated for this long, too. */
    patience?: number | undefined;
    /** For how long after the grant the resource stays taken even if the lease is released; at most the TTL. */
    minHold?: number | undefined;
    /** For how long after the grant the lease may be held; no extension makes it last longer. At least the TTL, at most 3650 days. */
    maxHold?: number | undefined;
    /** Takes one of this many slots of the resource, 1 to 32 (a semaphore). `lease.resource` is the name of the slot and
     * `lease.slot` its number. Each slot has tokens of its own. */
    slots?: number | undefined;
    /** A public label that the lease shows instead of the client's. */
    holder?: string | undefined;
    /** A JSON value that the lease shows to all callers. */
    metadata?: unknown;
    /** When this signal is aborted, the wait for the lease rejects with its reason. If the reason is a timeout
     * (`AbortSignal.timeout`), the wait rejects instead with Held, which names the holder, if the resource was held, or with
     * Unavailable if no server responded. The timeout is then the error's `cause`. To find out which it was may take a second more. */
    signal?: Signal | undefined;
}
export declare type LockOptions = AcquireOptions & KeepOptions;
export interface WatchOptions {
    /** When this signal is aborted, the watch rejects with its reason. */
    signal?: Signal | undefined;
}
/** Throws a TypeError or RangeError for options that a caller in JavaScript may pass though their types forbid them. */
export declare function checkClientOptions(options: ClientOptions): void;
export declare function refuseUnknown(options: object, known: readonly string[]): void;
/** The same for the options of a call, before anything is sent. */
export declare function checkOptions(options: LockOptions, names: readonly string[]): void;
export declare function namesOf(resource: string | readonly string[]): readonly string[];
