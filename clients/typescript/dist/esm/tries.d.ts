/** How a call has gone so far, and how long its next try may take. */
import { FencelockError, Unavailable } from './errors.js';
export declare const FIRST_PAUSE = 50;
export interface Bounds {
    /** Until when the call may wait in the queue; it does not without. */
    readonly waitUntil?: number | undefined;
    /** For how long it is repeated while it fails. */
    readonly patience?: number;
    /** Bounds one try, without its wait. */
    readonly limit?: number;
    /** When all tries have to be over. */
    readonly deadline?: number;
}
export declare class Tries {
    #private;
    number: number;
    /** A try without an answer may have taken effect. */
    ambiguous: boolean;
    readonly patience: number;
    readonly deadline: number;
    constructor(bounds: Bounds, patience: number, poll: number);
    /** What is left of the wait in the queue, and how much of it the next request waits. */
    wait(): {
        left: number;
        kept: number;
    };
    /** How long the next try may take beyond its wait. */
    limit(timeout: number): number;
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
