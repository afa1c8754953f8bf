// Package pgstore keeps a replica's rows in PostgreSQL, in the schema "fencelock" of a
// database that several servers may share.
//
// A store keeps the rows as it last saw them (mirror.go), and takes what it has not seen to
// be absent. A transaction is run on that first. As long as no other process writes, it then
// takes one round trip: one statement takes the writers' lock, finds the count of the
// transactions that wrote unchanged and absent what was taken to be, writes and commits.
//
// Otherwise a transaction takes two: the first takes the lock and reads the rows that the
// run has asked for (guess.go), the second writes and commits. If it wants others, too, it
// reads on: a wrong guess costs a round trip and nothing else.
//
// Writers come one after the other (the lock of a table that only they may take), so what they
// do is serialisable. A server that stops while it has the lock loses it after a
// second (idle_in_transaction_session_timeout). Reads are one snapshot.
//
// Time is clock_timestamp() of the primary, read under the lock. What is run on the
// mirror is judged by the earliest time that it may be there; rows that it makes end by
// the primary's clock all the same.
//
// The incarnation is made of the system identifier, the timeline, the database and the
// table: a promotion, a restore to a point in time and a restore from a dump change it,
// a crash and a restart do not, since what was committed survives them. A copy of the
// data folder has the same one: nothing can tell (docs/GUARANTEES.md).
//
// No setting outlives a transaction, so a pooler in transaction mode may stand between:
// then no statement is prepared by name. Only LISTEN cannot go through one: the waiters
// ask four times a second.
package pgstore
