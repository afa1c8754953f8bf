package api

import (
	"net/http"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

// prove adds the proofs to a lease. Its tokens are its own: the nodes granted them
// just now, or a lease id says so that this cluster sealed.
func (s *Server) prove(lease *wire.Lease) {
	keys := s.proofKeys()
	if keys == nil {
		return
	}
	if lease.FencingToken != 0 {
		lease.FencingProof = keys.Prove(lease.Resource, fencing.Token(lease.FencingToken))
	}
	for i := range lease.Resources {
		part := &lease.Resources[i]
		part.FencingProof = keys.Prove(part.Resource, fencing.Token(part.FencingToken))
	}
}

func (s *Server) proofKeys() *fencing.ProofKeys {
	if s.Proofs == nil {
		return nil
	}
	return s.Proofs()
}

// checkProof demands the proof of a token that is presented to a guarded record.
// The error is a *fencing.ProofError or a *lockcore.FieldError.
func (s *Server) checkProof(r *http.Request, resource string, token fencing.Token) error {
	if !s.ProofRequired {
		return nil
	}
	proof, err := header(r, wire.HeaderFencingProof)
	if err != nil {
		return err
	}
	keys := s.proofKeys()
	if keys == nil {
		return &fencing.ProofError{Resource: resource, Presented: token, Missing: proof == ""}
	}
	return keys.Verify(resource, token, proof)
}
