// Package quorum is the arithmetic of Redlock with tokens, as pure values: how many
// votes are needed ([Of], [Readers]), what the votes of one acquisition come to
// ([Tally]), and for how long the lease is valid ([Validity]). It does no I/O and
// knows no clock.
package quorum
