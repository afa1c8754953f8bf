/** Leases with fencing tokens, from a fencelock service. See README.md. */

export type { Bearer, Retry } from './calls.js';
export { Client } from './client.js';
export type { AcquireOptions, Attempt, ClientOptions, LockOptions, LockState, WatchOptions } from './client.js';
export { Closed, Denied, FencelockError, Held, LeaseLost, OtherLease, Refused, StaleToken, Unavailable } from './errors.js';
export { fenced } from './guard.js';
export type { PgClient, PgPool } from './guard.js';
export { Lease } from './lease.js';
export type { KeepOptions, Part } from './lease.js';
export type { Fetch } from './server.js';
