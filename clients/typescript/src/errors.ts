/** The errors that a call of the client can reject with. */

/** Any failure of a call. */
export class FencelockError extends Error {
  /** The problem type of the service's response ("lock-held", "no-quorum", …); "" if there was no response. A later version
   * of the service may have other types. */
  kind: string = '';
  /** The HTTP status of the response; 0 if there was no response. */
  status = 0;
  /** The resource of the call; several have ", " between them. */
  resource = '';
  /** The server that was asked last; "" if none was. */
  url = '';
  /** The X-Request-Id of the response; "" if it had none. */
  requestId = '';

  override get name(): string {
    return this.constructor.name;
  }

  /** Whether an error is one of this library. If so, `switch (error.kind)` narrows it to its class. */
  static is(error: unknown): error is Failure {
    return error instanceof FencelockError;
  }
}

/** Another lease holds the resource, or the wait for it ended. Safe to repeat. */
export class Held extends FencelockError {
  declare kind: 'lock-held' | 'wait-timeout';
  /** The label of that lease; "" if it has none. */
  holder = '';
  /** Its fencing token; 0 if it is not known. */
  token = 0;
  /** Milliseconds until that lease ends, unless it is extended; 0 if not known. */
  remaining = 0;
}

/** The lease has ended, or can no longer be kept alive: stop the work, and acquire again.
 * Earlier writes with its token are safe; later ones may be refused. */
export class LeaseLost extends FencelockError {
  declare kind: 'lease-not-held' | 'max-hold-reached' | 'stale-token' | '';
}

/** A guard refused the token, because it has seen a larger one. Nothing was written. Never repeat
 * the write with the same token. */
export class StaleToken extends LeaseLost {
  override kind: 'stale-token' = 'stale-token';
  /** The token that was refused, and the highest that the guard has seen; 0 if not known. */
  presented = 0;
  highest = 0;
}

/** For as long as the client's patience, no server responded, or none had a quorum, or this caller was over a limit. Safe to
 * repeat, except after `breakAny`, `writeRecord` and `deleteRecord`, which may have taken effect. */
export class Unavailable extends FencelockError {
  declare kind:
    | 'no-quorum' | 'server-stopping' | 'too-many-waiters' | 'too-many-listeners' | 'too-many-lists' | 'too-many-requests' | 'waiter-limit' | 'lease-limit'
    | 'record-limit' | 'too-many-records' | 'guard-unavailable' | 'identity-unavailable' | 'request-timeout' | 'internal-error' | '';
  /** How many milliseconds the service asks its clients to wait before the next request (Retry-After); 0 if it did not say. */
  retryAfter = 0;
}

/** The service requires a credential, does not accept the one that it got, or does not allow this caller the request. */
export class Denied extends FencelockError {
  declare kind: 'unauthorized' | 'forbidden' | 'proof-refused';
}

/** Any other refusal. The same request would be refused again. */
export class Refused extends FencelockError {
  declare kind:
    | 'invalid-request' | 'would-wait-for-itself' | 'lock-not-held' | 'other-lease' | 'idempotency-mismatch' | 'tokens-exhausted' | 'token-required'
    | 'proof-required' | 'record-not-found' | 'guard-not-configured' | 'host-not-served' | 'not-found' | 'method-not-allowed' | 'body-too-large'
    | 'unsupported-media-type' | '';
}

/** The lease to break does not hold the resource: another one does. Nothing was changed. */
export class OtherLease extends Refused {
  declare kind: 'other-lease';
  /** The label of that lease; "" if it has none. */
  holder = '';
  /** Its fencing token. */
  token = 0;
}

/** The client was closed. */
export class Closed extends FencelockError {
  override kind: 'closed' = 'closed';
}

/** Every error of this library. A `switch` over its `kind` narrows it to its class. */
export type Failure =
  | Held | StaleToken | Unavailable | Denied | OtherLease | Closed
  | (LeaseLost & { kind: Exclude<LeaseLost['kind'], 'stale-token'> })
  | (Refused & { kind: Exclude<Refused['kind'], 'other-lease'> });

const KIND = Symbol.for('fencelock.error');

/** Makes instanceof recognize the errors of another copy of this library, because an application may load it as a
 * CommonJS module and as an ES module. For the application's own subclasses instanceof works as usual. */
for (const [name, type] of Object.entries({ FencelockError, Held, LeaseLost, StaleToken, Unavailable, Denied, Refused, OtherLease, Closed })) {
  Object.defineProperty(type.prototype, KIND, { value: name });
  Object.defineProperty(type, Symbol.hasInstance, { value: isInstance });
}

function isInstance(this: { prototype: object }, value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false;
  const kind = Object.getOwnPropertyDescriptor(this.prototype, KIND)?.value;
  for (let p: unknown = Object.getPrototypeOf(value); p; p = Object.getPrototypeOf(p)) {
    if (p === this.prototype || (kind && Object.getOwnPropertyDescriptor(p, KIND)?.value === kind)) return true;
  }
  return false;
}

/** A name for a message, with escapes for characters that do not print or that change the direction of the text. */
export function shown(name: string): string {
  return name.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => `\\u{${(c.codePointAt(0) as number).toString(16)}}`);
}

/** The fields of a problem document; none if the response has no such document. */
export type Problem = Readonly<Record<string, unknown>>;

const HELD = ['lock-held', 'wait-timeout'];
const LOST = ['lease-not-held', 'max-hold-reached'];
const STALE = 'stale-token';
const AGAIN = [408, 429, 500, 502, 503, 504];

/** The error of a refusal, from its problem document ({} for an answer that has none). */
export function refusal(operation: string, resource: string, status: number, problem: Problem, retryAfter: string): FencelockError {
  const kind = String(problem['type'] ?? '').split('/problems/')[1] ?? '';
  const title = typeof problem['title'] === 'string' ? shown(problem['title']) : 'refused';
  const detail = typeof problem['detail'] === 'string' ? `: ${shown(problem['detail'])}` : '';
  const foreign = status === 404 && kind === '' && !problem['title'];
  const said = foreign ? 'the 404 did not come from fencelock: check host, port and path' : `${title} (${status})${detail}`;
  const error = new (classOf(kind, status))(`${operation}: ${said}`);
  error.kind = kind;
  error.status = status;
  error.resource = String(problem['resource'] ?? resource);
  if (error instanceof Held) {
    error.holder = String(problem['holder'] ?? '');
    error.token = Number(problem['fencing_token'] ?? 0);
    error.remaining = Number(problem['remaining_ms'] ?? 0);
  }
  if (error instanceof OtherLease) {
    error.holder = String(problem['holder'] ?? '');
    error.token = Number(problem['fencing_token'] ?? 0);
  }
  if (error instanceof StaleToken) {
    error.presented = Number(problem['presented'] ?? 0);
    error.highest = Number(problem['highest_token'] ?? 0);
  }
  if (error instanceof Unavailable && /^\d+$/.test(retryAfter)) error.retryAfter = Number(retryAfter) * 1000;
  return error;
}

function classOf(kind: string, status: number): typeof FencelockError {
  if (HELD.includes(kind)) return Held;
  if (kind === 'other-lease') return OtherLease;
  if (LOST.includes(kind)) return LeaseLost;
  if (kind === STALE) return StaleToken;
  if (status === 401 || status === 403) return Denied;
  return AGAIN.includes(status) ? Unavailable : Refused;
}

export function unavailable(operation: string, resource: string, why: string): Unavailable {
  return about(new Unavailable(`${operation}: ${why}`), resource);
}

/** The error of a call that would wait for the work around it (`joins`), or for the lease whose signal it got. */
export function waitsForItself(resources: readonly string[], held: readonly string[], joins: boolean): Refused {
  const names = resources.join(', ');
  const holder = joins ? 'the work around it' : 'the lease whose signal it got';
  const advice = joins ? "use that lease, or join it with the same client, the same resources and the work's signal" : 'use that lease, or take it by do(), whose work can join';
  const error = new Refused(`acquire ${shown(names)}: it would wait for itself: ${holder} holds ${shown(held.join(', '))}; ${advice}`);
  error.kind = 'would-wait-for-itself';
  return about(error, names);
}

export function lost(resource: string, why: string): LeaseLost {
  return about(new LeaseLost(`the lease of ${shown(resource)} is lost: ${why}`), resource);
}

/** Sets the resource of an error. */
export function about<E extends FencelockError>(error: E, resource: string): E {
  error.resource = resource;
  return error;
}
