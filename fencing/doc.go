// Package fencing is what an application imports to protect its own storage:
// the fencing Token, the Guard that refuses stale ones, and the error that a
// refusal is.
//
// The guarantee of a Guard: after a claim or a write with token T has returned
// without an error, no write with a token below T succeeds on that resource.
// A token equal to the highest is accepted, since one holder writes many times.
//
// The protocol is claim-then-write. A holder raises the resource's mark with
// its token before its first read; a guard that only looked at writes would
// still lose updates (A reads and pauses, B reads, A writes before B's first
// write raised the mark, B overwrites from what it read).
//
// Not promised: that a token was minted by a lock service (a client that makes
// numbers up can lock others out, unless proofs are demanded: ProofKeys), nor that a write whose answer was lost did
// not happen.
package fencing
