/** The options of a client and of its calls, and what is refused before anything is sent. */
import { Unavailable } from './errors.js';
import { KeepOptions } from './lease.js';
import { Fetch, Signal } from './platform.js';
/** A call that failed and is repeated. */
export interface Retry {
    /** Of the last try. */
    readonly error: Unavailable;
    /** So far. */
    readonly tries: number;
    /** Milliseconds since the first failure that still lasts. */
    readonly failing: number;
    /** Milliseconds before the next try. */
    readonly pause: number;
}
export declare type Bearer = string | (() => string | Promise<string>);
/** Settings of a client; times in milliseconds. */
export interface ClientOptions {
    /** The caller's credential, or what is called for it before each request. White space around it is dropped. If the function
     * fails, or takes longer than `timeout`, that is a try that failed: it is repeated for as long as the client is patient, and a lease
     * stays alive meanwhile until it ends. Its last failure is the `cause` of the Unavailable. */
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
    /** Called for every try that failed and is repeated. What it throws is dropped. */
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
    /** For how long this call is repeated that fails, instead of the client's patience: an acquire with a shorter `wait`, or none, goes on for so long, too. */
    patience?: number | undefined;
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
    /** Aborted, a wait for the lease ends with the signal's reason. A timeout (`AbortSignal.timeout`) ends it with Held, with the holder,
     * or with Unavailable, whichever it waited for, and is its `cause`; that may take a second more. */
    signal?: Signal | undefined;
}
export declare type LockOptions = AcquireOptions & KeepOptions;
export interface WatchOptions {
    /** Aborted, the watch rejects with the signal's reason. */
    signal?: Signal | undefined;
}
/** Refuses what JavaScript lets through. */
export declare function checkClientOptions(options: ClientOptions): void;
export declare function refuseUnknown(options: object, known: readonly string[]): void;
/** Refuses what JavaScript lets through, before anything is sent. */
export declare function checkOptions(options: LockOptions, names: readonly string[]): void;
export declare function namesOf(resource: string | readonly string[]): readonly string[];
