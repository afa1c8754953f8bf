/** The work under a lease, which calls in it may join. */
import { Held } from './around.js';
import { Lease } from './lease.js';
import { AcquireOptions } from './options.js';
/** What leases hold. */
export declare const taken: WeakMap<Lease, Held>;
/** What is held around a call, as its signal and its asynchronous context tell. */
export declare function heldAround(signal: AbortSignal | undefined): readonly Held[];
/** The lease of the work around a call that the call would wait for, if it is for resources of it, or for a slot and the work has them all. */
export declare function waitedFor(names: readonly string[], { slots }: AcquireOptions, servers: readonly string[], outer: readonly Held[]): Held | undefined;
/** A lease that one `do` took and that those nested in it share. */
export declare class Session implements Held {
    #private;
    readonly lease: Lease;
    readonly owner: object;
    readonly servers: readonly string[];
    over: boolean;
    readonly signal: AbortSignal;
    /** `kind` is what kindOf says of the call that took the lease. */
    constructor(lease: Lease, owner: object, servers: readonly string[], kind: string, scope: AbortController);
    /** Whether a do of this kind, by that client, joins it. */
    joins(kind: string, owner: object): boolean;
    /** Does the work of a nested do, which may have a signal that is made of the session's. */
    join<T>(work: (lease: Lease, signal: AbortSignal) => Promise<T> | T, signal: AbortSignal): Promise<T>;
    /** Does the work of a do, and releases the lease with the last. */
    run<T>(work: (lease: Lease, signal: AbortSignal) => Promise<T> | T, signal: AbortSignal): Promise<T>;
}
/** What leases have in common that may be joined: their resources, or that they are slots of one. */
export declare function kindOf(names: readonly string[], { slots }: AcquireOptions): string;
