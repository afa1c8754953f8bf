// Package pgstore keeps a replica's rows in PostgreSQL, in the schema "fencelock" of a
// database that several servers may share.
//
// A store keeps what it has read and written (mirror.go). As long as no other process
// writes, a transaction is run on that and takes one round trip: one statement takes the
// writers' lock, finds the count of the transactions that wrote unchanged, and writes.
//
// Otherwise a transaction takes two: the first takes the lock and reads every row that
// the transaction will want, the second writes and commits. Which rows those are is
// found out by running it beforehand on what the last ones have left (guess.go): a wrong
// guess costs a round trip and nothing else.
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
