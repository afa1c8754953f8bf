// Package membership decides which nodes may vote, and admits them.
//
// A node loses its admission with its state (a restart, a promotion, FLUSHALL) or
// when its clock jumps. It is then quarantined: it does not vote until the longest
// TTL has passed, since the leases that it forgot live for that long. After the
// wait it rejoins with what the other nodes know (rules 7 to 11, 13 and 21). After a
// lost majority the cluster is bootstrapped again: with no locks, and with tokens
// that begin above the clock (rule 12).
//
// The guarantee: when a node votes again, no lease that it forgot is valid, and no
// token that it forgot is granted again. A rejoin guarantees that while at most m-1
// of n nodes lose their state at once (m = n/2+1). A bootstrap guarantees it for the
// tokens while the wall clock is not behind, and no resource is acquired half a
// million times a second.
//
// It assumes that a node's incarnation changes whenever the node may have lost state,
// and that clocks run at about the same rate. It does not promise that servers agree
// on a plan, and need not: each step is safe on the node itself (rules 8 to 11).
// After Config.Force, tokens may repeat if a node that was given up comes back.
//
// What to do follows from what was observed: planFor is pure, and testdata has its
// scenarios. A [Controller] observes the nodes and carries the plans out. Every
// server runs one on the same nodes.
package membership
