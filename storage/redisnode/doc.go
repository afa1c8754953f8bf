// Package redisnode is a lockcore.Node over one independent Redis master
// (Redis 7 or newer, Valkey 7.2 or newer), with a database to itself.
//
// Every decision is made by a Lua script on the node, behind a gate that looks
// at the node's role and replication id each time (gate.lua). Votes go through
// one sender, which sends everything that queued up while the last batch was
// under way as one script call: a batch costs one round trip, one look at the
// gate and, with appendfsync always, one fsync.
//
// Assumed: the database is dedicated; maxmemory-policy is noeviction; nobody
// but this service writes to it. A node where that is visibly not so is
// refused, with a message that says what to change. Not detected: keys
// written by hand into a database that already carries this service's mark, and
// a restored memory snapshot of a whole virtual machine.
//
// What its user must be allowed to do, as ACL rules:
//
//	+evalsha +script|load +info +dbsize +type +time +ping +select +scan +flushdb
//	+hmget +hset +hdel +get +set +del +exists +incr +decr +pttl +pexpire
//	+zadd +zrem +zrange +zscore +zcard +publish +subscribe ~* &fencelock:*
package redisnode
