// Package redlock takes leases with fencing tokens over a quorum of independent
// nodes: Redlock, with the tokens that critics found missing in it. It has no
// knowledge of Redis or HTTP; a node is whatever passes lockcore/nodetest.
//
// It assumes n nodes, of which at most m-1 lose their state at once, for a quorum of
// m = n/2+1. It guarantees:
//
//   - Tokens, with no assumption about clocks: an acquisition that completes
//     before another of the same resource starts has the smaller token. No two
//     share a token. When an extend with token T succeeds, no acquisition with a
//     larger token had completed when it was sent.
//   - Exclusion, while clocks run at about the same rate and do not jump: a
//     resource has at most one valid lease at a time.
//
// A lease is valid for
//
//	validity = TTL - elapsed - drift,   drift = TTL/100 + 2ms
//
// counted on the monotonic clock from before the first request was sent. Its
// token is the largest grant of the quorum, confirmed by m nodes.
//
// It does not promise exclusion if clocks jump or a holder pauses: use the token and a fencing.Guard for
// that. It promises nothing about nodes that were restored from a memory snapshot.
//
// An Acquire is an attempt, which is a state machine without side effects, driven by an acquisition.
// Extends, releases and reads are rounds. Both collect the nodes' replies in a ballot. The packages below
// are quorum (arithmetic), membership (which nodes vote), waitqueue (the order of waiting requests),
// cleanup (what is removed from nodes in the background), order (a check of the tokens) and random.
//
// The rules, each with the counterexample that makes it necessary, are in
// docs/PROTOCOL.md; comments refer to them by number. The Redlock text is at
// https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/.
package redlock
