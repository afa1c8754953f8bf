// Package sim runs the production lockcore over simulated nodes, on a network
// and a clock that it owns, and checks what the lock service promises.
//
// A run is made of a Plan, and a Plan of a seed: how many nodes, servers and
// clients there are, what the network does, and a list of faults. Every call
// of a server on a node is a request and a reply that may be delayed, lost,
// doubled and overtaken; nodes lose their state, restart, roll back, stop and
// come back as empty replicas; servers stop, pause and crash; clients forget
// their leases and use old ones. Nothing happens but by the plan: everything
// runs inside testing/synctest, one message is delivered at a time, and
// all goroutines come to rest before the next. So one seed is one run, exactly;
// every run carries a hash of its trace to prove it.
//
// Requests are not sent in batches (POST /locks/batch). The api gives each operation of a
// batch to the lockcore.Service as a call of its own, at the same time as the others, and several
// clients here call one server at the same time, too. What a batch adds is outside of the
// lockcore: its response is as late as its last operation, and one hang-up cancels all; chaos sends
// batches. That a node runs several operations in one call is tested by its rules' texts, in
// batches (rules_test.go).
//
// What is checked is in check.go. Mutants (mutants.go) switch the protocol's
// rules off one by one, to show that the checks would notice.
//
// It is imported by tests only.
package sim
