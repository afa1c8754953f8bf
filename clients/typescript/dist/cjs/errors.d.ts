/** The errors that a call of the client can reject with. */
/** Any failure of a call. */
export declare class FencelockError extends Error {
    /** The problem type of the service's response ("lock-held", "no-quorum", …); "" if there was no response. A later version
     * of the service may have other types. */
    kind: string;
    /** The HTTP status of the response; 0 if there was no response. */
    status: number;
    /** The resource of the call; several have ", " between them. */
    resource: string;
    /** The server that was asked last; "" if none was. */
    url: string;
    /** The X-Request-Id of the response; "" if it had none. */
    requestId: string;
    get name(): string;
    /** Whether an error is one of this library. If so, `switch (error.kind)` narrows it to its class. */
    static is(error: unknown): error is Failure;
}
/** Another lease holds the resource, or the wait for it ended. Safe to repeat. */
export declare class Held extends FencelockError {
    kind: 'lock-held' | 'wait-timeout';
    /** The label of that lease; "" if it has none. */
    holder: string;
    /** Its fencing token; 0 if it is not known. */
    token: number;
    /** Milliseconds until that lease ends, unless it is extended; 0 if not known. */
    remaining: number;
}
/** The lease has ended, or can no longer be kept alive: stop the work, and acquire again.
 * Earlier writes with its token are safe; later ones may be refused. */
export declare class LeaseLost extends FencelockError {
    kind: 'lease-not-held' | 'max-hold-reached' | 'stale-token' | '';
}
/** A guard refused the token, because it has seen a larger one. Nothing was written. Never repeat
 * the write with the same token. */
export declare class StaleToken extends LeaseLost {
    kind: 'stale-token';
    /** The token that was refused, and the highest that the guard has seen; 0 if not known. */
    presented: number;
    highest: number;
}
/** For as long as the client's patience, no server responded, or none had a quorum, or this caller was over a limit. Safe to
 * repeat, except after `breakAny`, `writeRecord` and `deleteRecord`, which may have taken effect. */
export declare class Unavailable extends FencelockError {
    kind: 'no-quorum' | 'server-stopping' | 'too-many-waiters' | 'too-many-listeners' | 'too-many-lists' | 'too-many-requests' | 'waiter-limit' | 'lease-limit' | 'record-limit' | 'too-many-records' | 'guard-unavailable' | 'identity-unavailable' | 'request-timeout' | 'internal-error' | '';
    /** How many milliseconds the service asks its clients to wait before the next request (Retry-After); 0 if it did not say. */
    retryAfter: number;
}
/** The service requires a credential, does not accept the one that it got, or does not allow this caller the request. */
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
/** Every error of this library. A `switch` over its `kind` narrows it to its class. */
export declare type Failure = Held | StaleToken | Unavailable | Denied | OtherLease | Closed | (LeaseLost & {
    kind: Exclude<LeaseLost['kind'], 'stale-token'>;
}) | (Refused & {
    kind: Exclude<Refused['kind'], 'other-lease'>;
});
/** A name for a message, with escapes for characters that do not print or that change the direction of the text. */
export declare function shown(name: string): string;
/** The fields of a problem document; none if the response has no such document. */
export declare type Problem = Readonly<Record<string, unknown>>;
/** The error of a refusal, from its problem document ({} for an answer that has none). */
export declare function refusal(operation: string, resource: string, status: number, problem: Problem, retryAfter: string): FencelockError;
export declare function unavailable(operation: string, resource: string, why: string): Unavailable;
/** The error of a call that would wait for the work around it (`joins`), or for the lease whose signal it got. */
export declare function waitsForItself(resources: readonly string[], held: readonly string[], joins: boolean): Refused;
export declare function lost(resource: string, why: string): LeaseLost;
/** Sets the resource of an error. */
export declare function about<E extends FencelockError>(error: E, resource: string): E;
