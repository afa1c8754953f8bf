/** Leases with fencing tokens, from a fencelock service. See README.md. */

export { Client } from './client.js';
export { Closed, Denied, FencelockError, Held, LeaseLost, OtherLease, Refused, StaleToken, Unavailable } from './errors.js';
export type { Failure } from './errors.js';
export { fenced, guardError } from './guard.js';
export type { MysqlCallbackPool, MysqlConnection, MysqlPool, PgClient, PgPool } from './guard.js';
export type { KeepOptions, Lease, Part } from './lease.js';
export type { AcquireOptions, Bearer, ClientOptions, LockOptions, Retry, WatchOptions } from './options.js';
export type { Fetch, Signal } from './platform.js';
export type { Attempt, GuardedRecord, LockState } from './state.js';
