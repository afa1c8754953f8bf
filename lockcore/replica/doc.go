// Package replica is one node of the protocol as a state machine in Go, over a
// small transactional [Store].
//
// [Machine] has the rules of a node (docs/PROTOCOL.md, "What a node does") and nothing else: no goroutine, no
// clock, no I/O. It runs inside a transaction of a store. [Node] is a node.Node that queues operations. It
// executes all queued operations in one transaction (group commit), so that a store pays for one commit per
// batch.
//
// The machine's guarantees depend on those of the store. A transaction is atomic and serialisable, and is
// durable when its caller gets the result. A row with a TTL ends when its time has passed and never before.
// The incarnation changes whenever committed state may have been lost. The suite storetest checks a store for
// this.
//
// storage/redisnode is the same node written a second time, in Lua: the
// differential test of lockcore/nodetest compares the two on real Redis.
package replica
