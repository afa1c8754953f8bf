package api

import (
	"net/http"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/wire"
)

// whoami is GET /whoami: the caller's name and rules, so that a program can offer only what its user may
// do. Without access control every caller may do everything.
func (s *Server) whoami(w *exchange, _ *http.Request) error {
	body := wire.Caller{Rules: []wire.Rule{}}
	if who := w.who; who != nil {
		body.Name = who.Name()
		for prefix, right := range who.Rules() {
			body.Rules = append(body.Rules, wire.Rule{Prefix: prefix, Right: right.String()})
		}
	} else {
		body.Rules = append(body.Rules, wire.Rule{Right: access.Admin.String()})
	}
	return s.write(w, http.StatusOK, wire.TypeJSON, body)
}
