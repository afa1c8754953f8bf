// Package redisnode is a node.Node over one independent Redis master (Redis 7 or
// newer, Valkey 7.2 or newer), with a database to itself.
//
// A Lua script on the node makes every decision, behind a gate that checks the node's
// role and replication id each time (gate.lua). Votes go through one sender: while a
// batch is under way operations queue up, and the next script call takes all of them.
// So a batch costs one round trip, one evaluation of the gate and, with appendfsync
// always, one fsync.
//
// Assumed: the database is dedicated, maxmemory-policy is noeviction, and no other
// program writes to it. A node that visibly breaks this is refused, with a message that
// says what to change. Not detected: keys written by hand into a database that already
// carries this service's mark, and a restored memory snapshot of a whole virtual machine.
//
// The Redis user needs these ACL rules:
//
//	+evalsha +script|load +info +dbsize +type +time +ping +select +scan +flushdb
//	+hmget +hset +hdel +get +set +del +exists +incr +decr +pttl +pexpire
//	+zadd +zrem +zrange +zscore +zcard +publish +subscribe ~* &fencelock:*
package redisnode
