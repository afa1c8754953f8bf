// Package membership decides which nodes may vote, and admits them.
//
// A node loses its admission together with its state (by a restart, a promotion, FLUSHALL), or when its
// clock jumps. It is then quarantined: it does not vote until the longest TTL has passed, because the
// leases that it forgot may be valid for that long. After the wait it rejoins with the knowledge of the
// other nodes (rules 7 to 11, 13 and 21). After the loss of a majority the cluster is bootstrapped again:
// without locks, and with tokens that begin above the clock (rule 12).
//
// The guarantee: when a node votes again, every lease that it forgot has ended, and no token that it
// forgot is granted again. A rejoin guarantees this if at most m-1 of n nodes lose their state at once (m
// = n/2+1). A bootstrap guarantees it for tokens if the wall clock was not set back, and if no resource
// is acquired half a million times a second.
//
// It assumes that a node's incarnation changes whenever the node may have lost state, and that clocks run
// at about the same rate. It does not promise that servers agree on a plan. They need not, because each
// step is safe on the node itself (rules 8 to 11). After Config.Force, tokens may repeat if a node that
// was given up returns.
//
// The plan follows from the observations: planFor is a pure function, and testdata has its scenarios. A
// [Controller] observes the nodes and carries out the plans. Every server runs one for the same nodes.
package membership
