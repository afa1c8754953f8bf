export { Client, Closed, Denied, FencelockError, Held, LeaseLost, OtherLease, Refused, StaleToken, Unavailable, fenced, guardError } from './cjs/index.js';
