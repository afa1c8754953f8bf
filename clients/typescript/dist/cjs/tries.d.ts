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
    /** Until when the call may wait in the queue; it does not without. */
    readonly waitUntil?: number | undefined;
    /** Bounds one try, without its wait. */
    readonly limit?: number;
    /** When all tries have to be over. */
    readonly deadline?: number | undefined;
}
export declare class Tries {
    #private;
    number: number;
    /** Rounds over all servers without an answer for good. */
    silent: number;
    /** A try without an answer may have taken effect. */
    ambiguous: boolean;
    /** A poll has kept a place in the queue, unless the call has ended because the resource is held. */
    queued: boolean;
    /** A try was broken off, if it is still set when the call has ended. */
    underWay: boolean;
    /** The outcomes of tries that were given up in batches. */
    readonly late: Late[];
    /** The failure that still lasts. */
    last: Unavailable | undefined;
    readonly patience: number;
    readonly deadline: number;
    constructor(bounds: Bounds, patience: number, poll: number);
    /** What is left of the wait in the queue, and how much of it the next request waits. */
    wait(crowded?: boolean): {
        left: number;
        kept: number;
    };
    /** How long the next try may take beyond its wait, and when its server is probed, if it waits for `kept`.
     * `timeout` is the client's for a try, and `servers` have not been asked in this round: each is to have its time. */
    limit(timeout: number, servers: number, kept: number): {
        limit: number;
        probe: number | undefined;
    };
    /** For how long the call has failed. */
    failing(): number;
    /** Whether the call is to end, since it has failed for too long. */
    over(pause?: number): boolean;
    /** Notes a try that failed. */
    failed(error: Unavailable): void;
    /** Notes a poll that ended without a grant, and returns the pause before the next one. */
    held(): number;
    /** The pause before the next try: it spreads callers that failed together, and obeys Retry-After of a limit. */
    nextPause(error: Unavailable): number;
    /** Notes a refusal, and says whether it means that an earlier try has done what was asked. */
    done(call: {
        readonly method: string;
        readonly breaks?: number;
    }, error: FencelockError): boolean;
}
