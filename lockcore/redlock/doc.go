// Package redlock takes leases with fencing tokens over a quorum of independent
// nodes: Redlock, with the tokens that it was said to lack. It knows neither Redis
// nor HTTP; a node is whatever passes lockcore/nodetest.
//
// The guarantee, with n nodes, a quorum of m = n/2+1, and at most m-1 nodes
// that lose their state at once:
//
//   - Tokens, with no assumption about clocks: an acquisition that completes
//     before another of the same resource starts has the smaller token; no two
//     share one; a successful extend with token T means that no acquisition with
//     a larger one had completed when it was sent.
//   - Exclusion, while clocks run at about the same rate and do not jump: at
//     most one valid lease of a resource at a time.
//
// A lease is valid for
//
//	validity = TTL - elapsed - drift,   drift = TTL/100 + 2ms
//
// counted on the monotonic clock from before the first request was sent. Its
// token is the largest grant of the quorum, confirmed by m nodes.
//
// Not promised: exclusion when clocks jump or a holder pauses (that is what the
// token and a fencing.Guard are for), and anything about nodes that were
// restored from a memory snapshot.
//
// The rules, each with the counterexample that makes it necessary, are in
// docs/PROTOCOL.md; comments name them by their number. The Redlock text is at
// https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/.
package redlock
