// Package replica is one node of the protocol as a state machine in Go, over a
// small transactional [Store].
//
// [Machine] has the rules of a node (docs/PROTOCOL.md, "What a node does") and
// nothing else: no goroutine, no clock, no I/O. It runs inside a transaction of a
// store. [Node] is a node.Node that queues operations and puts all that are
// queued into one transaction (group commit), so that a store pays for one commit
// a batch.
//
// What the machine guarantees follows from what the store does: a transaction is
// atomic, serialisable and durable once it is answered, a row with a TTL goes when
// its time has passed and never before, and the incarnation changes whenever
// committed state may have been lost. The suite storetest holds a store to that.
//
// storage/redisnode is the same node written a second time, in Lua: the
// differential test of lockcore/nodetest compares the two on real Redis.
package replica
