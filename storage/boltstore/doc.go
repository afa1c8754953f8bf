// Package boltstore keeps a replica's rows in a bbolt file: the embedded default.
// With it, one process is a whole lock service. The service is durable (a transaction is on disk before its
// caller gets a result), but not highly available.
//
// Time. A row's end is kept on two clocks. While the process that wrote the row lives, its monotonic clock
// counts, so a change of the wall clock ends no row. The next process computes the remaining time from the
// wall clock when it opens the file, limits it to the row's TTL, and counts down from there.
//
// The incarnation is random and created with the file, since a confirmed commit survives every restart. A copy
// of the file, or a file restored from a backup, has the same incarnation, and nothing can detect this
// (docs/GUARANTEES.md).
package boltstore
