/** What a call of the client can reject with. */
/** Any failure of a call. */
export declare class FencelockError extends Error {
    /** The problem type of the service's response ("lock-held", "no-quorum", …); "" if there was no response. Those of a
     * later service may be others. */
    kind: string;
    /** Its HTTP status; 0 if there was no response. */
    status: number;
    /** What the call was about; several have ", " between them. */
    resource: string;
    /** The server that was asked last; "" if none was. */
    url: string;
    /** The X-Request-Id of its answer; "" without one. */
    requestId: string;
    get name(): string;
    /** Whether an error is one of this library: `switch (error.kind)` then tells them apart. */
    static is(error: unknown): error is Failure;
}
/** Another lease holds the resource, or the wait for it ended. Asking again is safe. */
export declare class Held extends FencelockError {
    kind: 'lock-held' | 'wait-timeout';
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
    kind: 'lease-not-held' | 'max-hold-reached' | 'stale-token' | '';
}
/** A guard refused the token: it has seen a larger one. Nothing was written. Never repeat
 * it with the same token. */
export declare class StaleToken extends LeaseLost {
    kind: 'stale-token';
    /** The token that was refused, and the highest that the guard has seen; 0 if not known. */
    presented: number;
    highest: number;
}
/** No server answered, or none had a quorum, or this caller sends more requests than it
 * may, for as long as the client's patience. Safe to repeat. */
export declare class Unavailable extends FencelockError {
    kind: 'no-quorum' | 'server-stopping' | 'too-many-waiters' | 'too-many-listeners' | 'too-many-lists' | 'too-many-requests' | 'waiter-limit' | 'lease-limit' | 'record-limit' | 'too-many-records' | 'guard-unavailable' | 'identity-unavailable' | 'request-timeout' | 'internal-error' | '';
    /** For how long the service asks not to be asked again, in milliseconds; 0 if it did not say. */
    retryAfter: number;
}
/** The service requires a credential, does not accept this one, or does not allow it this. */
export declare class Denied extends FencelockError {
    kind: 'unauthorized' | 'forbidden' | 'proof-refused';
}
/** Any other refusal. The same request would be refused again. */
export declare class Refused extends FencelockError {
    kind: 'invalid-request' | 'would-wait-for-itself' | 'lock-not-held' | 'other-lease' | 'idempotency-mismatch' | 'tokens-exhausted' | 'token-required' | 'proof-required' | 'record-not-found' | 'guard-not-configured' | 'host-not-served' | 'not-found' | 'method-not-allowed' | 'body-too-large' | 'unsupported-media-type' | '';
}
/** The lease to break does not hold the resource: another one does. Nothing was changed. */
export declare class OtherLease extends Refused {
    kind: 'other-lease';
    /** The label of that lease; "" if it has none. */
    holder: string;
    /** Its fencing token. */
    token: number;
}
/** The client was closed. */
export declare class Closed extends FencelockError {
    kind: 'closed';
}
/** Every error of this library: its `kind` narrows to the class in a `switch`. */
export declare type Failure = Held | StaleToken | Unavailable | Denied | OtherLease | Closed | (LeaseLost & {
    kind: Exclude<LeaseLost['kind'], 'stale-token'>;
}) | (Refused & {
    kind: Exclude<Refused['kind'], 'other-lease'>;
});
/** A name for a message: what does not print, or changes the direction of the text, is escaped. */
export declare function shown(name: string): string;
/** A problem document, or what is left of an answer that is none. */
export declare type Problem = Readonly<Record<string, unknown>>;
/** The error of a refusal, from its problem document ({} for an answer that has none). */
export declare function refusal(operation: string, resource: string, status: number, problem: Problem, retryAfter: string): FencelockError;
export declare function unavailable(operation: string, resource: string, why: string): Unavailable;
/** A call that would wait for the work around it, or for the lease whose signal it got. */
export declare function waitsForItself(resources: readonly string[], held: readonly string[], joins: boolean): Refused;
export declare function lost(resource: string, why: string): LeaseLost;
/** Notes what an error is about. */
export declare function about<E extends FencelockError>(error: E, resource: string): E;
