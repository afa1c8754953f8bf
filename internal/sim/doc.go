// Package sim runs the production lockcore over simulated nodes, on a network
// and a clock that it owns, and checks what the lock service promises.
//
// A run follows from a Plan, and a Plan from a seed. The plan says how many nodes, servers and clients there
// are, what the network does, and which faults happen. Every call of a server to a node is a request and a
// reply, and each may be delayed, lost, doubled or overtaken. Nodes lose their state, restart, roll back,
// stop, and come back as empty replicas. Servers stop, pause and crash. Clients forget their leases and use
// old ones. Only the plan decides what happens: everything runs inside testing/synctest, one message is
// delivered at a time, and all goroutines come to rest before the next one. So one seed always gives exactly
// the same run, and every run carries a hash of its trace to prove it.
//
// Requests are not sent in batches (POST /locks/batch). The api passes each operation of a batch to the
// lockcore.Service as a separate call, at the same time as the others, and here several clients call one
// server at the same time, too. The other properties of a batch are outside the lockcore: its response is as
// late as its last operation, and one hang-up cancels all operations. chaos sends batches. The texts of the
// nodes' rules test, in batches, that a node executes several operations in one call (rules_test.go).
//
// check.go lists what is checked. Mutants (mutants.go) switch the protocol's rules off one by one, to show
// that the checks notice.
//
// Only tests import this package.
package sim
