// Package zkstore keeps a replica's rows in ZooKeeper, below a path that several servers
// may share. It is a service of storage/optimistic, which says how transactions are
// serialised.
//
// A transaction is one request. It deletes the only znode below head, named by the id of
// the commit that the server has read last, and creates one with its own id. So it fails if
// another commit was first, also after a restore. The same request writes the znode head,
// creates the entry log/<number>, and deletes old ones. Each entry has the head that came
// with it too: servers that read the log miss no head that wakes anybody.
//
// A read makes ZooKeeper's leader confirm that nothing newer was committed: it checks that
// znode below head and writes one, which no follower can do alone.
//
// No clock of ZooKeeper is read. Servers count the time of rows from when they saw them. For
// one that starts later, each entry notes how much time servers had counted (clock.go), so
// rows never go early. While no server runs, no time passes.
//
// What has more than 1 MB is refused with replica.ErrTooLarge, so that the node halves its
// batch: a server's limit is 1 MB by default (jute.maxbuffer).
package zkstore
