/** The service's events about a resource, for a watch. They are no more than a reason to look, since any of them may be missing. */
import { Calls } from './calls.js';
export declare class Events {
    #private;
    constructor(calls: Calls, resource: string);
    /** Resolves when there is a reason to look, and rejects with the signal's reason. The first call begins to listen. */
    wait(signal: AbortSignal): Promise<void>;
    /** Ends the stream. */
    close(): void;
}
