package api

import (
	"errors"
	"net/http"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

const breaksPath = "/breaks"

// breakLock is POST /breaks.
func (s *Server) breakLock(w *exchange, r *http.Request) error {
	resource, token, err := s.breakRequest(w, r)
	if err != nil {
		return err
	}
	err = s.leases.Break(r.Context(), resource, token)
	if errors.Is(err, lockcore.ErrNotHeld) {
		return errLockNotHeld
	}
	if err != nil {
		return err
	}
	return noContent(w)
}

// breakRequest reads the resource, and the token of the lease to break; 0 means any. Only a caller with the
// right admin over the resource may break its leases.
func (s *Server) breakRequest(w *exchange, r *http.Request) (string, fencing.Token, error) {
	buf := s.buffer()
	defer s.recycle(buf)
	if err := readBody(w, r, buf, false); err != nil {
		return "", 0, err
	}
	resource, token, err := decodeBreak(buf.Bytes())
	if err != nil {
		return "", 0, err
	}
	w.resource = resource
	if s.Access != nil {
		err = may(w.who, access.Admin, resource)
	}
	return resource, token, err
}
