/** The work under a lease, which calls in it may join. */
import { Held } from './around.js';
import { Lease } from './lease.js';
import { AcquireOptions } from './options.js';
/** The Held of each lease that a call took. */
export declare const taken: WeakMap<Lease, Held>;
/** The leases held around a call, as its signal and its asynchronous context show. */
export declare function heldAround(signal: AbortSignal | undefined): readonly Held[];
/** The lease around a call for which the call would wait forever; undefined if there is none. A call for resources would wait
 * if one of them is held around it; a call for a slot would wait only if all the slots are. */
export declare function waitedFor(names: readonly string[], { slots }: AcquireOptions, servers: readonly string[], outer: readonly Held[]): Held | undefined;
/** A lease that one `do` took and that those nested in it share. */
export declare class Session implements Held {
    #private;
    readonly lease: Lease;
    readonly owner: object;
    readonly servers: readonly string[];
    over: boolean;
    readonly signal: AbortSignal;
    /** `kind` is the result of kindOf for the call that took the lease. */
    constructor(lease: Lease, owner: object, servers: readonly string[], kind: string, scope: AbortController);
    /** Whether a do of this kind, by that client, joins it. */
    joins(kind: string, owner: object): boolean;
    /** Runs the work of a nested do. If `signal` is not the session's but made from it, the work gets a signal that follows both. */
    join<T>(work: (lease: Lease, signal: AbortSignal) => Promise<T> | T, signal: AbortSignal): Promise<T>;
    /** Runs the work of a do. When the last work of the session has ended, it releases the lease. */
    run<T>(work: (lease: Lease, signal: AbortSignal) => Promise<T> | T, signal: AbortSignal): Promise<T>;
}
/** A text that is the same for calls which may share a lease: they name the same resources, and all or none ask for a slot. */
export declare function kindOf(names: readonly string[], { slots }: AcquireOptions): string;
