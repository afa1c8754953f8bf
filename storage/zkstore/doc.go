// Package zkstore keeps a replica's rows in ZooKeeper, below a path that several servers
// may share.
//
// The rows are a log. Each transaction is one znode, log/<number>, with the rows that it
// put and deleted; every server has read all of them, and has the rows in memory. A
// transaction runs there, and is committed by one request that creates the next entry
// on condition that the last one is that which the server has read: the only znode below
// head bears the last entry's random id, and is replaced in the same request. If another
// server was first, this one reads what that wrote and runs the transaction again. So
// transactions are serialised, whatever they read, and cost four operations of ZooKeeper
// however many rows they write. The znode clock has the log's bounds. A read makes ZooKeeper's leader confirm, by the same
// condition, that nothing newer was committed.
//
// The oldest entries are removed as new ones are written; what they have of living rows
// is written again with the transaction that removes them. The log is at most about
// twice as large as the rows.
//
// Time is the leader's clock, which stands in the answer to every commit and every read,
// as a server knows it: each carries the time on with its own monotonic clock. When the
// leader's clock jumps, or the next leader's shows another time, the first server that
// notices takes the difference out, for all (clock.go). While no server runs, no time
// passes.
//
// The incarnation is drawn when the path is made, and drawn again by a server that finds
// the log without an entry that it has seen: then ZooKeeper was restored from a backup,
// or emptied. No server notices a restore that happened while none was running. Where a part
// of the path was deleted, the log begins again, without rows, as another incarnation.
package zkstore
