/** How a call has gone so far, and how long its next try may take. */
import { Late } from './batch.js';
import { FencelockError, Unavailable } from './errors.js';
export declare const FIRST_PAUSE = 50;
export declare const GRACE = 1000;
export declare const HURRY = 250;
export declare const SHORTEST_TRY = 250;
export declare const CLOSE_GRACE = 3000;
export declare const ABANDON = 10000;
export interface Bounds {
    /** The time of `now` until which the call may wait in the queue. If it is undefined, the call does not wait. */
    readonly waitUntil?: number | undefined;
    /** The longest time of one try in milliseconds, without its wait in the queue. */
    readonly limit?: number;
    /** When all tries have to be over. */
    readonly deadline?: number | undefined;
}
export declare class Tries {
    #private;
    number: number;
    /** The number of rounds over all servers in which none gave a final response. */
    silent: number;
    /** Whether a failed try may have taken effect. */
    ambiguous: boolean;
    /** Whether a server may keep a place in the queue for this call. A poll without a grant sets it; the last Held clears it. */
    queued: boolean;
    /** Whether a try is under way. If it is still true when the call has ended, that try was broken off. */
    underWay: boolean;
    /** The outcomes of tries that were given up in batches. */
    readonly late: Late[];
    /** The error of the last try that failed; undefined after a poll that got a response. */
    last: Unavailable | undefined;
    readonly patience: number;
    readonly deadline: number;
    constructor(bounds: Bounds, patience: number, poll: number);
    /** How many milliseconds are left of the wait in the queue (`left`), and how many of them the next request waits (`kept`). */
    wait(crowded?: boolean): {
        left: number;
        kept: number;
    };
    /** How many milliseconds the next try may take in addition to its wait of `kept` in the queue, and after how many its server
     * is probed (undefined: never). `timeout` is the longest that the client allows a try. `servers` is the number of servers
     * that have not been asked in this round: each gets its share of the time. */
    limit(timeout: number, servers: number, kept: number): {
        limit: number;
        probe: number | undefined;
    };
    /** For how many milliseconds the call has failed. */
    failing(): number;
    /** Whether the call has to end, because after the pause it would have failed for too long. */
    over(pause?: number): boolean;
    /** Notes a try that failed. */
    failed(error: Unavailable): void;
    /** Notes a poll that ended without a grant, and returns the pause before the next one. */
    held(): number;
    /** The milliseconds before the next try. A random factor spreads the callers that failed together, and the pause is at least
     * the Retry-After of a 429. */
    nextPause(error: Unavailable): number;
    /** Notes a refusal, and says whether it means that an earlier try has done what was asked. */
    done(call: {
        readonly method: string;
        readonly breaks?: number;
    }, error: FencelockError): boolean;
}
