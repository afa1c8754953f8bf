/** What the work around a call holds: in Node it is known without being passed on. */
import { Lease } from './lease.js';
/** A lease that a `do` took and that others in its work may join, or would wait for. */
export interface Held {
    readonly owner: object;
    readonly servers: readonly string[];
    readonly lease: Lease;
    readonly over: boolean;
}
/** Runs work, whose calls know what is held. */
export declare function inside<T>(held: Held, work: () => Promise<T>): Promise<T>;
/** What is held around the caller, from the inside to the outside. */
export declare function around(): Held[];
