/** Leases with fencing tokens, from a fencelock service. See README.md. */
export { Client } from './client.js';
export { Closed, Denied, FencelockError, Held, LeaseLost, OtherLease, Refused, StaleToken, Unavailable } from './errors.js';
export { fenced, guardError } from './guard.js';
