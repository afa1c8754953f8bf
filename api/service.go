package api

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// healthz is GET /healthz: the process runs and responds.
func (s *Server) healthz(w *exchange, _ *http.Request) error {
	return s.write(w, http.StatusOK, wire.TypeJSON, wire.Health{Status: "ok"})
}

// readyz is GET /readyz: 200 only while a quorum may vote. A failing guard shows only in the body, because
// a load balancer should not remove a server that can still lock. With access control, only authenticated
// callers see the nodes and the guard's error, which contain host names.
func (s *Server) readyz(w *exchange, r *http.Request) error {
	cluster := s.Service.Observe(r.Context())
	status := http.StatusOK
	if !cluster.Ready {
		status = http.StatusServiceUnavailable
	}
	guard := s.guard.status()
	if s.Access != nil && w.who == nil {
		cluster.Nodes, cluster.Reason = nil, ""
		for i := range cluster.Sets {
			cluster.Sets[i].Nodes, cluster.Sets[i].Reason = nil, ""
		}
		if !cluster.Ready {
			cluster.Reason = "too few nodes may vote; an authenticated request gets the nodes and reasons"
		}
		if guard != nil && !guard.Ready {
			guard.Reason = "the storage fails; an authenticated request gets the reason"
		}
	}
	body := readyBody(cluster)
	body.Guard = guard
	return s.write(w, status, wire.TypeJSON, body)
}

func readyBody(c lockcore.ClusterStatus) wire.Ready {
	body := wire.Ready{
		Ready:  c.Ready,
		Reason: c.Reason,
		Quorum: c.Quorum,
		Voting: c.Voting,
		Nodes:  make([]wire.Node, len(c.Nodes)),
	}
	for _, s := range c.Sets {
		set := wire.NodeSet{Ready: s.Ready, Reason: s.Reason, Quorum: s.Quorum, Voting: s.Voting}
		for _, n := range s.Nodes {
			set.Nodes = append(set.Nodes, n.Name)
		}
		body.Sets = append(body.Sets, set)
	}
	for i, n := range c.Nodes {
		node := &body.Nodes[i]
		*node = wire.Node{
			Name:    n.Name,
			State:   string(n.State),
			Reason:  n.Reason,
			SinceMS: millisDown(n.Since),
			WaitMS:  millisUp(n.Wait),
			Epoch:   n.Epoch,
			Version: n.Version,
			Role:    n.Role,
		}
		if n.LastError != "" {
			ago := millisDown(n.LastErrorAgo)
			node.LastError, node.LastErrorMS = n.LastError, &ago
		}
	}
	return body
}

// openapi is GET /openapi.yaml.
func (s *Server) openapi(w *exchange, _ *http.Request) error {
	return writeBytes(w, http.StatusOK, "application/yaml; charset=utf-8", s.OpenAPI)
}

// problemPage is GET /problems/{type}: the page at the URL of a problem's type.
func (s *Server) problemPage(w *exchange, r *http.Request) error {
	page, ok := s.pages[chi.URLParam(r, "type")]
	if !ok {
		return errUnknownPath
	}
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	return writeBytes(w, http.StatusOK, "text/html; charset=utf-8", page)
}
