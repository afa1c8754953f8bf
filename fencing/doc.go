// Package fencing is what an application imports to protect its own storage. It has the fencing Token, the
// Guard that refuses stale tokens, and the errors of refusals.
//
// The guarantee of a Guard: after a claim or a write with token T has returned
// without an error, no write with a token below T succeeds on that resource.
// A token equal to the highest one is accepted, because one holder writes many times.
//
// The protocol is claim-then-write. A holder raises the resource's mark with its token before its first read.
// A guard that only checked writes would still lose updates: A reads and pauses, B reads, A writes before B's
// first write has raised the mark, and B overwrites A's change with a value that it computed from its earlier
// read.
//
// Not promised: that a token was minted by a lock service. A client that makes up numbers can lock others
// out, unless the guard requires proofs (ProofKeys). Also not promised: that a write whose response was lost
// did not happen.
package fencing
