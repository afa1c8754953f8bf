/** Bounds the requests under way to a server, each of which has a connection of its own. Further requests wait for their turn. */
export declare class Lane {
    #private;
    readonly size: number;
    constructor(size: number);
    /** Whether more than half of the lane is in use. */
    get crowded(): boolean;
    /** Waits for a turn, which the caller ends with `leave`. Rejects with the signal's reason when that is aborted first. */
    enter(signal: AbortSignal): Promise<void>;
    /** Ends a turn, and gives it to the next. */
    leave(): void;
}
