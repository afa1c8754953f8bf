/** Bounds the requests under way to a server, each of which has a connection of its own; the others wait for their turn. */
export declare class Lane {
    #private;
    readonly size: number;
    constructor(size: number);
    /** Whether more than half of it is in use. */
    get crowded(): boolean;
    /** Waits for a turn, after which `leave` must follow. Rejects with the signal's reason. */
    enter(signal: AbortSignal): Promise<void>;
    /** Ends a turn, and gives it to the next. */
    leave(): void;
}
