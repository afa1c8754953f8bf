package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// decision is what a route asks of its callers where there is access control.
type decision struct {
	needs string // for people, as docs/access.md has it
	// open routes look at no credentials; optional ones at those that are there.
	open, optional bool
	// check refuses who may not; nil lets everybody who is known pass.
	check func(s *Server, who *access.Identity, r *http.Request) error
	// act names an administrative act, which is audited.
	act string
}

// decisions is the one table of who may do what, by method and pattern; HEAD is
// as GET. A route that is not in it is refused to everybody.
func decisions() map[string]decision {
	return map[string]decision{
		"POST /locks":                    {needs: "acquire of every resource that it names"}, // see asked.allowed
		"GET /locks":                     {needs: "any name; it lists what the caller may read"},
		"GET /locks/*":                   {needs: "read", check: ofPath(access.Read)},
		"DELETE /locks/*":                {needs: "admin", check: ofPath(access.Admin), act: "break"},
		"GET /leases/{lease_id}":         {needs: "the lease's owner, with acquire", check: ofLease},
		"POST /leases/{lease_id}/extend": {needs: "the lease's owner, with acquire", check: ofLease},
		"DELETE /leases/{lease_id}":      {needs: "the lease's owner, with acquire", check: ofLease},
		"GET /guarded/*":                 {needs: "read; with a token, which claims, acquire", check: ofRecord},
		"PUT /guarded/*":                 {needs: "acquire", check: ofRecord},
		"GET /events":                    {needs: "any name; it tells of what the caller may read"},
		"GET /console":                   {needs: "nothing: the page holds no data", open: true},
		"GET /console/{file}":            {needs: "nothing", open: true},
		"GET /healthz":                   {needs: "nothing", open: true},
		"GET /readyz":                    {needs: "nothing; the nodes are shown to any name", optional: true},
		"GET /openapi.yaml":              {needs: "nothing", open: true},
		"GET /problems/{type}":           {needs: "nothing", open: true},
	}
}

// forbiddenError is errForbidden with what was missing.
type forbiddenError struct {
	who      string
	right    access.Right
	resource string
}

func (e *forbiddenError) Error() string {
	return fmt.Sprintf("%s has not the right %s over %q", e.who, e.right, e.resource)
}

func (e *forbiddenError) Is(target error) bool { return target == errForbidden }

func may(who *access.Identity, right access.Right, resource string) error {
	if who.May(right, resource) {
		return nil
	}
	return &forbiddenError{who: who.Name(), right: right, resource: resource}
}

func ofPath(right access.Right) func(*Server, *access.Identity, *http.Request) error {
	return func(_ *Server, who *access.Identity, r *http.Request) error {
		resource, err := pathResource(r, "/locks/")
		if err != nil {
			return err
		}
		return may(who, right, resource)
	}
}

func ofRecord(_ *Server, who *access.Identity, r *http.Request) error {
	resource, _, err := guardedPath(r)
	if err != nil {
		return err
	}
	right := access.Read
	if r.Method == http.MethodPut || len(r.Header[wire.HeaderFencingToken]) > 0 {
		right = access.Acquire
	}
	return may(who, right, resource)
}

// ofLease refuses with what a lease that has ended is answered: whether there is
// a lease is for its owner to know, and lockcore refuses everybody else so, too.
func ofLease(s *Server, who *access.Identity, r *http.Request) error {
	resources, _, err := s.Leases.ReadLeaseID(lockcore.WithCaller(r.Context(), who.Name()), leaseID(r))
	if err != nil {
		return err
	}
	for _, resource := range resources {
		if !who.May(access.Acquire, resource) {
			return lockcore.ErrNotHeld
		}
	}
	return nil
}

// leaseID is the lease id that the path names.
func leaseID(r *http.Request) string { return chi.URLParam(r, "lease_id") }

// guard lets a handler be reached by those whom the table lets in.
func (s *Server) guard(method, pattern string, h handler) handler {
	d, decided := decisions()[method+" "+pattern]
	if !decided {
		d.check = func(_ *Server, who *access.Identity, _ *http.Request) error {
			return &forbiddenError{who: who.Name(), right: access.Admin}
		}
	}
	if s.Access != nil && !d.open {
		h = s.checked(d, h)
	}
	if d.act != "" {
		h = s.audited(d.act, h)
	}
	return h
}

// checked finds out who calls, and asks the decision.
func (s *Server) checked(d decision, h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		who, err := s.Access.Identify(r)
		switch {
		case d.optional && errors.Is(err, access.ErrNoCredentials):
			return h(w, r)
		case err != nil:
			return s.unknown(w, r, err)
		}
		if rw, ok := w.(*responder); ok {
			rw.who = who
		}
		if err := who.Request(); err != nil {
			return err
		}
		if d.check != nil {
			if err := d.check(s, who, r); err != nil {
				return err
			}
		}
		return h(w, r)
	}
}

// GuardAdmin puts the admin listener's handler behind access control, for where
// it is not on loopback: the metrics are for who may read everything, and what
// else there is (profiles, which may hold secrets) for who may administer
// everything. Every look at the latter is audited.
func (s *Server) GuardAdmin(next http.Handler) http.Handler {
	metrics := decision{check: mayAll(access.Read)}
	profiles := decision{check: mayAll(access.Admin)}
	pass := func(w http.ResponseWriter, r *http.Request) error {
		next.ServeHTTP(w, r)
		return nil
	}
	router := chi.NewRouter()
	router.Use(s.instrument)
	router.Handle("/metrics", s.answer(s.checked(metrics, pass)))
	router.Handle("/*", s.answer(s.audited("profile", s.checked(profiles, pass))))
	return router
}

func mayAll(right access.Right) func(*Server, *access.Identity, *http.Request) error {
	return func(_ *Server, who *access.Identity, _ *http.Request) error {
		if who.MayAll(right) {
			return nil
		}
		return &forbiddenError{who: who.Name(), right: right, resource: "*"}
	}
}

// unknown answers a caller that is not known. Why, only the log is told: an
// error of the library says what of a JWT does not fit, and never the JWT.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request, err error) error {
	challenge := `Bearer realm="fencelock"`
	switch {
	case errors.Is(err, access.ErrBadCredentials):
		challenge += `, error="invalid_token"`
	case !errors.Is(err, access.ErrNoCredentials):
		return err
	}
	s.Logger.LogAttrs(r.Context(), slog.LevelDebug, "caller not known",
		slog.String("request_id", w.Header().Get(wire.HeaderRequestID)), slog.Any("error", err))
	w.Header().Set("WWW-Authenticate", challenge)
	return errUnauthorized
}

// whileAllowed serves a request that may stay open for long, for as long as a new
// one would be let in. After that its context ends, and h's refusal is that of a
// new request. What h was granted meanwhile it has to release.
func (s *Server) whileAllowed(w http.ResponseWriter, r *http.Request, still func(*access.Identity) error, h handler) error {
	who := callerOf(w)
	if who == nil {
		return h(w, r)
	}
	ctx, stop := s.Access.Follow(r, who, still)
	defer stop()
	err := h(w, r.WithContext(ctx)) //nolint:contextcheck // Follow derives it from the request's
	if err == nil || ctx.Err() == nil || r.Context().Err() != nil {
		return err
	}
	return s.unknown(w, r, context.Cause(ctx)) //nolint:contextcheck // as above
}

// anyName lets everybody go on who is known.
func anyName(*access.Identity) error { return nil }

// callerOf is who calls, nil without access control.
func callerOf(w http.ResponseWriter) *access.Identity {
	if rw, ok := w.(*responder); ok {
		return rw.who
	}
	return nil
}

// asCaller is the request's context for calls about leases, which answer to
// their owners.
func asCaller(w http.ResponseWriter, r *http.Request) context.Context {
	return onBehalfOf(r.Context(), callerOf(w))
}

// onBehalfOf has calls under ctx made for leases of who, if there is access control.
func onBehalfOf(ctx context.Context, who *access.Identity) context.Context {
	if who == nil {
		return ctx
	}
	return lockcore.WithCaller(ctx, who.Name())
}

// mayRead tells which resources the caller may be shown, by its rights of the
// moment; nil for all. It is safe for concurrent use.
func (s *Server) mayRead(w http.ResponseWriter) func(resource string) bool {
	if s.Access == nil {
		return nil
	}
	who := callerOf(w)
	return func(resource string) bool { return who.Now().May(access.Read, resource) }
}

// allowed asks whether who has acquire of each resource.
func (a *asked) allowed(who *access.Identity) error {
	if a.Resource != "" {
		return may(who, access.Acquire, a.Resource)
	}
	for _, resource := range a.Resources {
		if err := may(who, access.Acquire, resource); err != nil {
			return err
		}
	}
	return nil
}

// audited leaves a line in the audit log for each attempt at an administrative
// act, with what became of it.
func (s *Server) audited(act string, h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) (err error) {
		result := "failed" // unless it gets to say otherwise
		defer func() { s.audit(w, r, act, result) }()
		if err = h(w, r); err == nil {
			result = "done"
		} else {
			result = strings.TrimPrefix(s.classify(err).Type, wire.ProblemPrefix)
		}
		return err
	}
}

// nobody is the identity in the audit log where there is none.
const nobody = "-"

func (s *Server) audit(w http.ResponseWriter, r *http.Request, act, result string) {
	identity := nobody
	if who := callerOf(w); who != nil {
		identity = who.Name()
	}
	resource := r.URL.Path // of the admin listener, where no path is secret
	if name, ok := strings.CutPrefix(r.URL.EscapedPath(), "/locks/"); ok {
		resource, _ = parseResource(name) // "" if it is none, which the result says
	}
	s.Audit.LogAttrs(context.WithoutCancel(r.Context()), slog.LevelInfo, "audit",
		slog.String("identity", identity),
		slog.String("act", act),
		slog.String("resource", resource),
		slog.String("result", result),
		slog.String("request_id", w.Header().Get(wire.HeaderRequestID)),
		slog.String("remote", r.RemoteAddr))
}
