// Package mysqlguard is the guard in MariaDB, in two uses.
//
// Guard is a fencing.Guard: the service's own guarded records.
//
// Do and the routines fencing_claim and fencing_protect guard tables of an application: after fencing_claim
// with token T has returned, no transaction with a token below T commits a change to a protected row, at any
// isolation level. See docs/reference/guard-mariadb.md. It also lists what the guard in Postgres refuses and
// this one permits: TRUNCATE, cascades of foreign keys, and a writer without a claim on the connection that
// claimed last.
//
// Assumed: clients reach the primary, the primary keeps its commits (innodb_flush_log_at_trx_commit=1), and
// binlog_format is not STATEMENT. Not promised: protection against users who may drop triggers or truncate the
// table.
package mysqlguard
