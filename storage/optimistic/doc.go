// Package optimistic is a replica.Store over a service that keeps a few keys for several
// servers, and can write some of them in one step if one has not changed: etcd. Such a
// service is a [Service]; it knows nothing of transactions.
//
// The rows are a log. Each transaction adds an entry to it, with the rows that it put and
// the keys that it deleted; every server has read all of them, and has the rows in memory
// (the [Mirror]), which the service keeps up to date. A transaction runs on this copy. What
// it wrote is then committed under one condition: that the head is still the one on which
// it ran. The head is a key that every commit replaces by another value, so commits come
// one after the other: a transaction never misses a row that was changed, inserted or
// deleted meanwhile, in a range neither. After a conflict it runs again on the newer copy.
// A transaction that wrote nothing, and a View, is good if the copy is as new as a
// linearizable read of the head that began after the call.
//
// The oldest entries are removed as new ones are written; what they have of living rows is
// written again with the transaction that removes them. The log is at most about twice as
// large as the rows. The head has its bounds.
//
// One condition costs nothing where there is one server. Several that commit at the same
// time take turns: the head names them in order, and only the first commits, all that was
// queued at it meanwhile. Each commit takes its server from the front to the back. So no
// commit is refused for long; a refused one costs as much time as one that succeeds. A
// server comes in by the claim, a key that it sets when its commit was refused, or when
// it sees that others take turns: the next commit, whoever's, takes the claim into the
// order. A server leaves when its turn comes and it has nothing to commit. One that does
// not use its turn is left out after [Options.Patience].
//
// The turn is advice: what keeps commits apart is the head. Servers take turns, not
// rows: conditions on single rows would conflict just as often, since most grants write the
// node's record, which has the high-water mark.
//
// A row goes when this server has seen it for as long as its time to live, by a clock that
// cannot be set, less what the service knows of how old it was. That is never before its
// time: a row is seen after it was written. A transaction that writes also deletes the rows
// that it found ended, since servers that saw them later would find them still; those that
// nobody asks for are swept.
//
// The incarnation is a random life, kept in the head. Another begins where the head is
// missing, where the service says that its data was restored, where its versions went back,
// and where the log is without an entry that a server has seen, or that the head names: then
// without rows, since somebody has deleted some. A life that began where all was deleted
// gives way to another one as soon as a server looks that has seen what was there.
package optimistic
