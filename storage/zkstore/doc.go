// Package zkstore keeps a replica's rows in ZooKeeper, below a path that several servers
// may share. It is a service of storage/optimistic, which says how transactions are
// serialised.
//
// A transaction is one request. It deletes the only child of head, whose name is the id of the last commit
// that the server has read, and creates a child with its own id. So it fails if another commit was first, even
// after a restore. The same request writes the znode head, creates the entry log/<number>, and deletes old
// entries. Each entry also contains the head that was written with it, so a server that reads the log misses
// no head that wakes a waiter.
//
// A read makes ZooKeeper's leader confirm that nothing newer was committed. It checks that child of head and
// also writes a znode, because a follower cannot serve a write alone.
//
// ZooKeeper's clocks are not read. Servers count the time of rows from the moment they saw them. For a server
// that starts later, each entry contains how much time the servers had counted (clock.go), so rows never end
// early. While no server runs, no time passes.
//
// A transaction of more than 1 MB is refused with replica.ErrTooLarge, so that the node halves its batch: a
// server's limit is 1 MB by default (jute.maxbuffer).
package zkstore
