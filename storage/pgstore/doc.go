// Package pgstore keeps a replica's rows in PostgreSQL, in the schema "fencelock" of a
// database that several servers may share.
//
// A store keeps a copy of the rows that it has seen (mirror.go), and assumes that all other rows are absent. A
// transaction first runs on that copy. If no other process has written, it then takes one round trip: one
// statement takes the writers' lock, verifies that no other transaction has written and that the rows assumed
// absent are absent, writes and commits.
//
// Otherwise a transaction takes two round trips. The first takes the lock and reads the rows that the run has
// requested (guess.go); the second writes and commits. If fn needs further rows, it reads them in more round
// trips. So a wrong guess costs a round trip and nothing else.
//
// Writers are serialised by the lock of a table that only one of them may hold. A server that stops while it
// has the lock loses it after a second (idle_in_transaction_session_timeout). Reads use one snapshot.
//
// Time is clock_timestamp() of the primary, read under the lock. A run on the mirror uses the earliest time
// that the primary's clock may show; rows that it creates still end by the primary's clock.
//
// The incarnation is made of the system identifier, the timeline, the database and the table. A promotion, a
// restore to a point in time and a restore from a dump change it. A crash and a restart do not, since commits
// survive them. A copy of the data folder has the same incarnation, and nothing can detect this
// (docs/GUARANTEES.md).
//
// No setting outlives a transaction, so a pooler in transaction mode may be in between. Then no statement is
// prepared by name, and LISTEN does not work: the waiters poll four times a second.
package pgstore
