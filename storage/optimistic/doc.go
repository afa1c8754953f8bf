// Package optimistic is a replica.Store over a service that keeps a few keys for several servers, and can
// write several keys in one step on the condition that one has not changed: etcd and ZooKeeper. Such a service
// is a [Service]; it knows nothing of transactions.
//
// The rows are a log. Each transaction appends an entry with the rows that it put and the keys that it
// deleted. Every server has read all entries and has the rows in memory (the [Mirror]), which the service
// keeps up to date. A transaction runs on this copy. Its changes are then committed on one condition: the head
// is still the one on which it ran. The head is a key to which every commit gives a new value, so commits are
// serial. A transaction therefore never misses a row that was changed, inserted or deleted meanwhile, not even
// in a range. After a conflict it runs again on the newer copy. A View, or a transaction that wrote nothing,
// is valid if the copy is at least as new as a linearizable read of the head that began after the call.
//
//	run fn on the copy ──▶ commit if head is unchanged ──▶ done
//	      ▲                          │ conflict
//	      └── wait for the newer copy ┘
//
// The oldest entries are removed as new ones are written. If a removed entry contains living rows, the same
// transaction writes them again. So the log is at most about twice as large as the rows. The head contains the
// log's first and last number.
//
// With one server this condition costs nothing. Several servers that commit at the same time take turns: the
// head lists them in order. Only the first one commits, with all the transactions that were queued on it
// meanwhile, and each commit moves its server from the front to the back. So no server's commits are refused
// for long, although a refused commit costs as much time as a successful one. A server joins the list by the
// claim, a key that it sets when its commit was refused or when it sees that others take turns. The next
// commit of any server moves the claim into the list. A server leaves when its turn comes and it has nothing
// to commit. A server that does not use its turn is removed after [Options.Patience].
//
// The turn is only advice; the condition on the head is what keeps commits apart. Servers take turns instead
// of using conditions on single rows, because those would conflict just as often: most grants write the node's
// record, which contains the high-water mark.
//
// A row ends when this server has seen it for its time to live, by a clock that cannot be set, minus the row's
// age when it was seen, if the service knows it. That is never too early, because a row is seen after it was
// written. A transaction that writes also deletes the rows that it found ended, because servers that see those
// rows later would still find them. The sweep deletes ended rows that no transaction touches.
//
// The incarnation is the random name of a life, which the head contains. A new life begins, without rows, in
// these cases: the head is missing; the service reports that its data was restored; its versions went back;
// or the log lacks an entry that a server has seen, or that the head names, because somebody has deleted
// data. If a life began after everything was deleted, a new life replaces it when a server that has seen the
// deleted data reads the head.
package optimistic
