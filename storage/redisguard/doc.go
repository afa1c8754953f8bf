// Package redisguard guards your data in Redis: your Lua script checks the token and
// writes in one atomic step. NewScript puts the function claim in front of it.
//
// Assumed: the data and its mark are in one Redis (in a cluster: in one slot),
// which keeps what it acknowledged (appendfsync always), evicts nothing
// (maxmemory-policy noeviction), and is not failed over to a replica that
// lags. If Redis loses a high-water mark, it accepts stale tokens again; see
// docs/how-to/guard-other-storage.md.
package redisguard
