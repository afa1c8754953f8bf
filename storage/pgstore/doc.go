// Package pgstore keeps a replica's rows in PostgreSQL, in the schema "fencelock" of a
// database that several servers may share.
//
// A transaction takes two round trips: the first takes the writers' lock and reads
// every row that the transaction will want, the second writes and commits. Which rows
// those are is found out by running it beforehand on what the last ones have left
// (guess.go): a wrong guess costs a round trip and nothing else.
//
// Writers come one after the other (an advisory lock of the transaction), so what they
// do is serialisable. A server that stops while it has the lock loses it after a
// second (idle_in_transaction_session_timeout). Reads are one snapshot.
//
// Time is clock_timestamp() of the primary, read under the lock.
//
// The incarnation is made of the system identifier, the timeline, the database and the
// table: a promotion, a restore to a point in time and a restore from a dump change it,
// a crash and a restart do not, since what was committed survives them. A copy of the
// data folder has the same one: nothing can tell (docs/GUARANTEES.md).
//
// No setting outlives a transaction and no statement is prepared by name, so a pooler
// in transaction mode may stand between. Only LISTEN cannot go through one: then the
// waiters ask four times a second.
package pgstore
