// Package etcdstore keeps a replica's rows in etcd, under a prefix that several servers
// may share. It is a service of storage/optimistic, which says how transactions are
// serialised.
//
// A transaction is one Txn, which compares the head. etcd bounds it to 128
// operations and 1.5 MB by default: more than 120 rows are put into nested Txns of 60,
// which count once, and what has more than 3,000 rows or 1.4 MB is refused with
// replica.ErrTooLarge, so that the node halves its batch.
//
// A row with a time to live hangs on an etcd lease, which is never kept alive. Rows that
// end within the same second share one (leases.go), so that no grant pays for a lease of
// its own. Servers that saw a row written count its time themselves and end it exactly;
// after a restart, and for rows that no server is there to see, etcd ends it up to two
// seconds later, and a change of etcd's leader starts the time again. Never earlier.
//
// The data are recognised by etcd's cluster id, and by how far the raft index is ahead of
// the revision: every revision is an entry of the raft log, so that distance never
// shrinks, but a restore from a snapshot begins the log again. So a restore is noticed
// although no server saw the state before it, and although the cluster id is the same,
// which it is where the members' URLs and the cluster token are. etcd logs some entries
// more or less when it starts, so a second restore may pass for the first if there were
// fewer than ten commits between them.
package etcdstore
