// Package membership decides which nodes may vote, and admits them.
//
// A node loses its admission with its state (a restart, a promotion, FLUSHALL) or
// when its clock jumps. It is then quarantined: it does not vote until the longest
// TTL has passed, since the leases that it forgot live for that long. After the
// wait it rejoins with what the other nodes know (rules 7 to 11, 13 and 21). When
// a majority has lost its state, the cluster is bootstrapped again: with no locks,
// and with tokens that begin above the clock (rule 12).
//
// What to do follows from what was observed: planFor is pure, and testdata has its
// scenarios. A [Controller] observes and carries the plans out. Every server runs
// one on the same nodes. They need not agree: each step is safe on the node itself
// (rules 8 to 11).
package membership
