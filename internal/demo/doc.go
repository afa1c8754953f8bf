// Package demo shows, with real processes, what a lock alone cannot prevent
// and what a fencing token does about it.
//
// Two workers deposit money into the same account, under the same lock. The
// first is stopped (SIGSTOP) between the check of its lease and its write, as a
// long garbage collection or a starved virtual machine would do it, until its
// lease has ended. The second takes the lock over and deposits. Then the first
// goes on, knows of nothing, and writes.
//
// Round one keeps the account in storage that takes every write: the second
// deposit is lost. Round two keeps it in the service's guarded records, read by
// a claim: the late write is refused, the first worker begins again, and both
// deposits are there.
//
// [Run] directs the processes, [RunWorker] is a worker's whole program, and a
// [Report] is what happened. The judgement of a round ([Round.Verdict]) looks
// only at what the workers reported and at what the storage holds in the end.
package demo
