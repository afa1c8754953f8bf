// Package etcdstore keeps a replica's rows in etcd, under a prefix that several servers
// may share. It is a service of storage/optimistic, which says how transactions are
// serialised.
//
// A transaction is one Txn of at most four operations: it compares and puts the head, puts an entry of the
// log, and removes old entries. A transaction of more than 1.4 MB is refused with replica.ErrTooLarge, so that
// the node halves its batch: etcd's limit is 1.5 MB by default.
//
// No key is attached to an etcd lease. Servers count the time of rows from the moment they saw them. For a
// server that starts later, each entry contains its time of writing, by a clock that etcd's leader keeps
// (clock.go). After such a start rows end up to two seconds late. If the leader changed, their time starts
// again. They never end early.
//
// A server manages its own login (login.go), with one attempt at a time. The etcd client would log in for each
// request and each watch.
//
// The data are identified by etcd's cluster id, and by how far the raft index is ahead of the revision. Every
// revision is an entry of the raft log, so that distance never shrinks, except that a restore from a snapshot
// begins the raft log again. This detects a restore even if no server saw the state before it, and even if the
// cluster id is the same, as it is when the members' URLs and the cluster token are unchanged. etcd logs a
// varying number of entries when it starts. So a second restore may look like the first if there were fewer
// than ten commits between them.
package etcdstore
