package api

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

// stampMark stands between a lease id and its stamp.
const stampMark = "."

// prove adds the proofs to a lease whose token is known to be its own: the nodes
// granted it just now, or the lease id bears this service's stamp. A lease id is
// not authenticated otherwise, and whoever edits the token in it would be given
// a proof for a number of his own.
func (s *Server) prove(lease *wire.Lease) {
	keys := s.proofKeys()
	if keys == nil {
		return
	}
	if lease.FencingToken != 0 {
		lease.FenceProof = keys.Prove(lease.Resource, fencing.Token(lease.FencingToken))
	}
	for i := range lease.Resources {
		part := &lease.Resources[i]
		part.FenceProof = keys.Prove(part.Resource, fencing.Token(part.FencingToken))
	}
}

// stamp marks the lease id of a new lease as this service's.
func (s *Server) stamp(lease *wire.Lease) {
	if keys := s.proofKeys(); keys != nil {
		lease.LeaseID += stampMark + keys.Stamp(lease.LeaseID)
	}
}

// stamped tells whether the lease id in the path is as this service made it.
func (s *Server) stamped(r *http.Request) bool {
	keys := s.proofKeys()
	if keys == nil {
		return false
	}
	id, stamp, _ := strings.Cut(chi.URLParam(r, "lease_id"), stampMark)
	return keys.Stamped(id, stamp)
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
