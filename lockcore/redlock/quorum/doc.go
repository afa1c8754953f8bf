// Package quorum is the arithmetic of Redlock with tokens, as pure values: how many
// votes are needed ([Of], [Readers]), what the votes of one acquisition decide
// ([Tally]), and for how long the lease is valid ([Validity]). It does no I/O and
// reads no clock.
//
// The guarantee: if a Tally is Won, a quorum of nodes holds at least its token, and the token is the
// largest grant of a quorum. It assumes that its caller passes on what the nodes replied. It does not
// promise that a lease is valid: that needs Validity, and clocks that run at about the same rate.
package quorum
