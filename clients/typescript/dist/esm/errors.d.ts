/** What a call of the client can reject with. */
/** Any failure of a call. */
export declare class FencelockError extends Error {
    /** The problem type of the service's answer ("lock-held", "no-quorum", …); "" if there was no answer. */
    kind: string;
    /** Its HTTP status; 0 if there was no answer. */
    status: number;
    /** What the call was about; several have ", " between them. */
    resource: string;
    /** The server that was asked last; "" if none was. */
    url: string;
    /** The X-Request-Id of its answer; "" without one. */
    requestId: string;
    get name(): string;
}
/** Another lease holds the resource, or the wait for it ended. Asking again is safe. */
export declare class Held extends FencelockError {
    /** The label of that lease; "" if it has none. */
    holder: string;
    /** Its fencing token; 0 if it is not known. */
    token: number;
    /** How long it lives still, in milliseconds. */
    remaining: number;
}
/** The lease has ended, or can no longer be kept alive: stop the work, and acquire again.
 * What was written with its token is safe; what comes may be refused. */
export declare class LeaseLost extends FencelockError {
}
/** A guard refused the token: it has seen a larger one. Nothing was written. Never repeat
 * it with the same token. */
export declare class StaleToken extends LeaseLost {
    /** The token that was refused, and the highest that the guard has seen; 0 if not known. */
    presented: number;
    highest: number;
}
/** No server answered, or none had a quorum, or this caller sends more requests than it
 * may, for as long as the client's patience. Safe to repeat. */
export declare class Unavailable extends FencelockError {
    /** For how long the service asks not to be asked again, in milliseconds; 0 if it did not say. */
    retryAfter: number;
}
/** The service requires a credential, does not accept this one, or does not allow it this. */
export declare class Denied extends FencelockError {
}
/** Any other refusal. The same request would be refused again. */
export declare class Refused extends FencelockError {
}
/** The lease to break does not hold the resource: another one does. Nothing was changed. */
export declare class OtherLease extends Refused {
    /** The label of that lease; "" if it has none. */
    holder: string;
    /** Its fencing token. */
    token: number;
}
/** The client was closed. */
export declare class Closed extends FencelockError {
}
/** A name for a message: what does not print, or changes the direction of the text, is escaped. */
export declare function shown(name: string): string;
/** A problem document, or what is left of an answer that is none. */
export declare type Problem = Readonly<Record<string, unknown>>;
/** The error of a refusal, from its problem document ({} for an answer that has none). */
export declare function refusal(operation: string, resource: string, status: number, problem: Problem, retryAfter: string): FencelockError;
export declare function unavailable(operation: string, resource: string, why: string): Unavailable;
export declare function lost(resource: string, why: string): LeaseLost;
/** Notes what an error is about. */
export declare function about<E extends FencelockError>(error: E, resource: string): E;
