/** The service's events about a resource, for a watch. An event is only a reason to look at the resource, since any may be missing. */
import { Calls } from './calls.js';
export declare class Events {
    #private;
    constructor(calls: Calls, resource: string);
    /** Resolves when it is time to look at the resource. Rejects with the signal's reason when that is aborted. The first call
     * opens the stream. */
    wait(signal: AbortSignal): Promise<void>;
    /** Ends the stream. */
    close(): void;
}
