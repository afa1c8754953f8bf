/** What the service shows, as a program reads it: times are milliseconds. */
/** A resource, and who holds it. */
export interface LockState {
    readonly resource: string;
    readonly held: boolean;
    /** The label of the holder; "" if it has none, or the resource is free. */
    readonly holder: string;
    /** The fencing token of its lease; 0 while the resource is free. */
    readonly token: number;
    /** When the lease ends, unless it is extended. */
    readonly remaining: number;
    /** What the lease was last given. */
    readonly ttl: number;
    /** For how long it is held. */
    readonly heldFor: number;
    /** The JSON value of its acquire; null if there is none. */
    readonly metadata: unknown;
    /** How many wait, and the first of them. */
    readonly waiters: number;
    readonly queue: readonly {
        readonly holder: string;
        readonly waiting: number;
    }[];
}
/** A guarded record. */
export interface GuardedRecord {
    readonly resource: string;
    /** The highest token that it has seen; 0 if it has seen none. */
    readonly highestToken: number;
    /** A JSON value; null before the first write, and after a delete. */
    readonly value: unknown;
    /** The number of accepted writes. */
    readonly version: number;
}
/** A write or a claim of a guarded record, accepted or refused. */
export interface Attempt {
    readonly token: number;
    /** What the token was compared with. */
    readonly highest: number;
    /** "write" or "claim". */
    readonly kind: string;
    readonly accepted: boolean;
    readonly version: number;
    readonly at: Date;
}
declare type Json = Readonly<Record<string, unknown>>;
export declare function lockState(of: Json): LockState;
export declare function guardedRecord(of: Json): GuardedRecord;
export declare function attempt(of: Json): Attempt;
export {};
