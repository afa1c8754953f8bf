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
/** Makes `await using` possible if the compiler's library has it (TypeScript 5.2 and newer). */
export declare type Disposable = SymbolConstructor extends {
    readonly asyncDispose: infer S extends symbol;
} ? {
    [dispose in S]: () => Promise<void>;
} : {};
export interface Lease extends Disposable {
}
/** A lease. Times are milliseconds on the monotonic clock (`performance.now()`). The validity counts from
 * when the request was sent, so the lease never ends in the service before it ends here. Its id and proofs are secrets, which
 * console.log does not show. */
export declare class Lease {
    #private;
    /** The resource: with `slots` the name of the slot; for several resources, their names with ", " between them. */
    readonly resource: string;
    /** The number of the slot, from 1, if the lease was acquired with `slots`; else 0. */
    readonly slot: number;
    /** The time to live in milliseconds. Every extension restarts it. */
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
    /** When validity ends, as a time of `performance.now()`. From then on another lease may hold the resource. */
    get until(): number;
    /** For how many milliseconds the lease is sure to hold; 0 when it may have ended. */
    get validity(): number;
    /** Whether the lease has ended, or ends within its margin. It reads the clock, so a process that was
     * paused knows at once. */
    get lost(): boolean;
    /** A signal that is aborted, with LeaseLost as its reason, when a lease that is kept alive is lost. Its `aborted` reads the
     * clock, as `lost` does. */
    get signal(): Signal;
    /** Throws LeaseLost if the lease is lost. Call it before each write, and in loops. */
    check(): void;
    /** Why the lease is lost; undefined while it is not. */
    loss(): LeaseLost | undefined;
    /** Restarts the lease's TTL. Rejects with LeaseLost, which is final, or with Unavailable: then the lease
     * keeps its earlier validity, and the call may be repeated. */
    extend(): Promise<void>;
    /** From now on extends the lease whenever a third of its TTL has passed, until it is released or lost.
     * `do` and `lock` keep their leases alive without this call. */
    keepAlive(options?: KeepOptions): void;
    /** Releases the lease. Rejects with LeaseLost if the lease had ended before, and with Unavailable if the lease
     * may not have been released: repeat the call, or let the TTL end the lease. */
    release(): Promise<void>;
    /** Releases a lease after its work, as `do` does, and never rejects. It waits for the release for at most `within`
     * milliseconds, by default a second. After that the release continues in the background; if no server responds, the TTL ends
     * the lease. Resolves to the loss if the lease was lost before. */
    finish(within?: number): Promise<LeaseLost | undefined>;
    /** For logs: the tokens, and neither the id nor a proof. */
    toString(): string;
}
/** Makes `await using` call `end` on the objects of a class, if the engine has it (Node 18.18 and newer). */
export declare function disposable<T extends object>(type: {
    prototype: T;
}, end: (what: T) => Promise<void>): void;
