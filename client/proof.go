package client

// Proof is the fence_proof of the lease's token, for guards that demand one; ""
// if the service makes none (FENCELOCK_PROOF_KEY_FILE), and for a lease of several
// resources, see Parts.
func (l *Lease) Proof() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last.FenceProof
}
