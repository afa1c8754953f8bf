/** A lease as the process that holds it knows it. */
import { LeaseLost } from './errors.js';
import { Signal } from './platform.js';
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
/** The lease whose `signal` this is. */
export declare const leaseOf: (signal: Signal) => Lease | undefined;
/** `await using` where the compiler's library knows it (TypeScript 5.2 and newer). */
export declare type Disposable = SymbolConstructor extends {
    readonly asyncDispose: infer S extends symbol;
} ? {
    [dispose in S]: () => Promise<void>;
} : {};
export interface Lease extends Disposable {
}
/** A lease. Times are milliseconds on the monotonic clock (`performance.now()`), counted from
 * before the request that got them. Its id and proofs are secrets, which console.log does not show. */
export declare class Lease {
    #private;
    /** What the lease is of: with `slots` the name of the slot; of several resources, their names with ", " between them. */
    readonly resource: string;
    /** The number of the slot, from 1, of a lease that was acquired with `slots`; else 0. */
    readonly slot: number;
    /** The time to live that every extension gives the lease again. */
    readonly ttl: number;
    /** The fencing token: pass it to storage that refuses smaller ones. A lease of several
     * resources has one for each: see `parts`. */
    get token(): number;
    /** The fencing_proof of the token, a secret; "" if the service makes none. */
    get proof(): string;
    /** Each resource with its token and proof, in the order of their names. */
    get parts(): readonly Part[];
    /** The lease id, the capability of the lease. It is a secret. */
    get id(): string;
    /** When validity ends. From then on another lease may hold the resource. */
    get until(): number;
    /** How long the lease is sure to hold; 0 when it may be over. */
    get validity(): number;
    /** Whether the lease has ended, or is about to. It looks at the clock: a process that was
     * paused knows at once. */
    get lost(): boolean;
    /** Aborted, with LeaseLost as its reason, when a lease that is kept alive is lost. Its `aborted` compares the clock, as `lost` does. */
    get signal(): Signal;
    /** Throws LeaseLost if the lease is lost. Call it before each write, and in loops. */
    check(): void;
    /** Why the lease is lost; undefined while it is not. */
    loss(): LeaseLost | undefined;
    /** Gives the lease its TTL again. Rejects with LeaseLost (final), or Unavailable: the lease
     * keeps its old validity, and the call may be repeated. */
    extend(): Promise<void>;
    /** Extends the lease at a third of its TTL from now on, until it is released or lost.
     * `do` and `lock` do it by themselves. */
    keepAlive(options?: KeepOptions): void;
    /** Releases the lease. Rejects with LeaseLost if it had ended before, and Unavailable if it
     * may not have been released: repeat it, or let the TTL end it. */
    release(): Promise<void>;
    /** Ends a lease whose work has ended, as `do` does, within so many milliseconds, a second unless given: what no server has
     * answered by then is done in the background, and if none responds at all, its TTL ends the lease.
     * Returns the loss, if it was lost before. */
    finish(within?: number): Promise<LeaseLost | undefined>;
    /** For logs: the tokens, and neither the id nor a proof. */
    toString(): string;
}
/** Has `await using` end what a class makes, where the engine knows it: Node 18.18 and newer. */
export declare function disposable<T extends object>(type: {
    prototype: T;
}, end: (what: T) => Promise<void>): void;
