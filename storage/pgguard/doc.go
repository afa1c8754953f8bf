// Package pgguard is the guard in Postgres, in two uses.
//
// Guard is a fencing.Guard: the service's own guarded records.
//
// Do, DoSQL and the SQL functions of the schema "fencing" protect tables of an application: after
// fencing.claim with token T has returned, no transaction with a token below T commits a change to a protected
// row, at any isolation level. See docs/reference/guard.md.
//
// Assumed: clients reach the primary, and the primary keeps its commits (an asynchronous failover may lose
// marks). Not promised: protection against the table's owner, who can drop triggers, or against sessions with
// session_replication_role set to replica, in which no triggers run.
package pgguard
