/** What the service reports about locks and guarded records. Times are in milliseconds. */

/** A resource, and who holds it. */
export interface LockState {
  readonly resource: string;
  readonly held: boolean;
  /** The label of the holder; "" if it has none, or the resource is free. */
  readonly holder: string;
  /** The fencing token of the holder's lease; 0 while the resource is free. */
  readonly token: number;
  /** Milliseconds until the lease ends, unless it is extended; 0 while the resource is free. */
  readonly remaining: number;
  /** The TTL in milliseconds that the lease got from its acquire or its last extend; 0 while the resource is free. */
  readonly ttl: number;
  /** For how many milliseconds the lease has been held; 0 while the resource is free. */
  readonly heldFor: number;
  /** The JSON value that the lease was acquired with; null if there is none. */
  readonly metadata: unknown;
  /** How many requests wait in the queue. `queue` has the first of them, with the milliseconds that each has waited. */
  readonly waiters: number;
  readonly queue: readonly { readonly holder: string; readonly waiting: number }[];
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
  /** The record's highest token, with which `token` was compared. */
  readonly highest: number;
  /** "write" or "claim". */
  readonly kind: string;
  readonly accepted: boolean;
  readonly version: number;
  readonly at: Date;
}

type Json = Readonly<Record<string, unknown>>;

export function lockState(of: Json): LockState {
  const queue = (of['queue'] as Json[] | undefined) ?? [];
  return {
    resource: String(of['resource']),
    held: Boolean(of['held']),
    holder: String(of['holder'] ?? ''),
    token: Number(of['fencing_token'] ?? 0),
    remaining: Number(of['remaining_ms'] ?? 0),
    ttl: Number(of['ttl_ms'] ?? 0),
    heldFor: Number(of['held_ms'] ?? 0),
    metadata: of['metadata'] ?? null,
    waiters: Number(of['waiters'] ?? 0),
    queue: queue.map((w) => ({ holder: String(w['holder'] ?? ''), waiting: Number(w['waiting_ms'] ?? 0) })),
  };
}

export function guardedRecord(of: Json): GuardedRecord {
  return { resource: String(of['resource']), highestToken: Number(of['highest_token'] ?? 0), value: of['value'] ?? null, version: Number(of['version'] ?? 0) };
}

export function attempt(of: Json): Attempt {
  return {
    token: Number(of['fencing_token']),
    highest: Number(of['highest_token']),
    kind: String(of['kind']),
    accepted: Boolean(of['accepted']),
    version: Number(of['version'] ?? 0),
    at: new Date(String(of['at'])),
  };
}
