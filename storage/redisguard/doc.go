// Package redisguard guards data that lives in Redis: in Lua, where the check
// of the token and the write are one step that nothing comes between.
//
// Guard is a fencing.Guard of JSON records. NewScript is for data of your own:
// it puts the function claim in front of your script.
//
// Assumed: the data and its mark are in one Redis (in a cluster: in one slot),
// which keeps what it acknowledged (appendfsync always), evicts nothing
// (maxmemory-policy noeviction), and is not failed over to a replica that
// lags. Where Redis forgets a mark, it forgets that a token is stale; see
// docs/how-to/guard.md.
package redisguard
