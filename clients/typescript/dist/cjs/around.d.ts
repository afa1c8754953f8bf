/** The leases that the work around a call holds. In Node an AsyncLocalStorage carries them, so that nobody passes them on. */
import { Lease } from './lease.js';
/** A lease that an earlier call took. A call inside its work may join it, or would wait for it in vain. */
export interface Held {
    readonly owner: object;
    readonly servers: readonly string[];
    readonly lease: Lease;
    readonly over: boolean;
}
/** Runs work. For the calls inside it, `around` has `held` in its list. */
export declare function inside<T>(held: Held, work: () => Promise<T>): Promise<T>;
/** The leases held around the caller that are not over, the innermost first. */
export declare function around(): Held[];
