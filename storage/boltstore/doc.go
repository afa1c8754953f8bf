// Package boltstore keeps a replica's rows in a bbolt file: the embedded default.
// With it one process is a whole lock service, durable (a transaction is on disk
// when it has been answered) and not highly available.
//
// Time. A row's end is kept on two clocks. While the process that wrote the row
// lives, its monotonic clock counts, so a set wall clock ends nothing. The next
// process takes what the wall clock leaves of the row, and at most its TTL, when
// it opens the file, and counts down from there.
//
// The incarnation is random and made with the file, since a commit that was
// answered survives every restart. A copy of the file, or one restored from a
// backup, has the same incarnation: nothing can tell (docs/GUARANTEES.md).
package boltstore
