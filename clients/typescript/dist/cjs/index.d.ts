/** Leases with fencing tokens, from a fencelock service. See README.md. */
export type { Bearer, Retry } from './calls.js';
export { Client } from './client.js';
export type { AcquireOptions, ClientOptions, LockOptions, WatchOptions } from './client.js';
export { Closed, Denied, FencelockError, Held, LeaseLost, OtherLease, Refused, StaleToken, Unavailable } from './errors.js';
export type { Failure } from './errors.js';
export { fenced, guardError } from './guard.js';
export type { MysqlCallbackPool, MysqlConnection, MysqlPool, PgClient, PgPool } from './guard.js';
export type { KeepOptions, Lease, Part } from './lease.js';
export type { Fetch } from './server.js';
export type { Attempt, GuardedRecord, LockState } from './state.js';
