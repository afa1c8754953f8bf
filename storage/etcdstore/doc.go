// Package etcdstore keeps a replica's rows in etcd, under a prefix that several servers
// may share. It is a service of storage/optimistic, which says how transactions are
// serialised.
//
// A transaction is one Txn of at most four operations: it compares and puts the head, puts
// an entry of the log, and removes old ones. What has more than 1.4 MB is refused with
// replica.ErrTooLarge, so that the node halves its batch: etcd's limit is 1.5 MB by default.
//
// No key hangs on an etcd lease. Servers count the time of rows from when they saw them. For
// one that starts later, each entry notes when it was written, by a clock that etcd's leader
// keeps (clock.go): rows then end up to two seconds late, and a change of the leader starts
// the time again. Never early.
//
// A server logs in by itself (login.go), once at a time: the client of etcd would do it for
// each request and each watch.
//
// The data are recognised by etcd's cluster id, and by how far the raft index is ahead of
// the revision: every revision is an entry of the raft log, so that distance never
// shrinks, but a restore from a snapshot begins the log again. So a restore is noticed
// although no server saw the state before it, and although the cluster id is the same,
// which it is where the members' URLs and the cluster token are. etcd logs some entries
// more or less when it starts, so a second restore may pass for the first if there were
// fewer than ten commits between them.
package etcdstore
