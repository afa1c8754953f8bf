// Package mysqlguard is the guard in MariaDB, in two uses.
//
// Guard is a fencing.Guard: the service's own guarded records.
//
// Do and the routines fencing_claim and fencing_protect guard tables of an
// application's own: after fencing_claim with token T has returned, no transaction with a
// token below T commits a change to a protected row, at any isolation level. See
// docs/reference/guard-mariadb.md, which also lists what the guard in Postgres refuses and
// this one does not: TRUNCATE, foreign keys' cascades, and a writer that claims nothing on
// the connection that claimed last.
//
// Assumed: clients reach the primary, the primary keeps what it committed
// (innodb_flush_log_at_trx_commit=1), and binlog_format is not STATEMENT. Not promised:
// protection against whoever may drop triggers or truncate the table.
package mysqlguard
