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
	needs string // for people, as docs/reference/access.md has it
	// open routes ignore credentials; optional ones accept requests without any.
	open, optional bool
	probe          bool // asks how the server is
	// check refuses callers without the right; nil lets every authenticated caller pass.
	check func(s *Server, w http.ResponseWriter, who *access.Identity, r *http.Request) error
	// act names an administrative act, which is audited.
	act string
}

// decisions is the one table of who may do what, by method and pattern; HEAD is
// as GET. A route that is not in it refuses every caller.
func decisions() map[string]decision {
	return map[string]decision{
		"POST /locks":                 {needs: "acquire of every resource that it names"}, // see asked.allowed
		"POST /locks/batch":           {needs: "what each of its operations needs"},
		"POST /cancel":                {needs: "acquire of every resource that it names"}, // see asked.allowed
		"GET /locks":                  {needs: "any known caller; it lists what the caller may read"},
		"GET /locks/*":                {needs: "read", check: ofLock},
		"POST /breaks":                {needs: "admin of the resource that it names", act: "break"}, // see breakRequest
		"GET /leases/current":         {needs: "the lease's owner, with acquire", check: ofLease},
		"POST /leases/current/extend": {needs: "the lease's owner, with acquire", check: ofLease},
		"DELETE /leases/current":      {needs: "the lease's owner, with acquire", check: ofLease},
		"GET /guarded":                {needs: "any known caller; it lists what the caller may read"},
		"GET /guarded/*":              {needs: "read", check: ofRecord},
		"PUT /guarded/*":              {needs: "acquire", check: ofRecord},
		"POST /guarded/*":             {needs: "acquire", check: ofRecord},
		"DELETE /guarded/*":           {needs: "acquire", check: ofRecord},
		"GET /history":                {needs: "read", check: ofHistory},
		"GET /events":                 {needs: "any known caller; it has events of resources that the caller may read"},
		"GET /activity":               {needs: "any known caller; it names resources that the caller may read"},
		"GET /":                       {needs: "nothing: it redirects to the console, or to the contract", open: true},
		"GET /console/":               {needs: "nothing", open: true},
		"GET /console":                {needs: "nothing: the page holds no data", open: true},
		"GET /console/{file}":         {needs: "nothing", open: true},
		"GET /whoami":                 {needs: "any known caller; it shows the caller's own rules"},
		"GET /healthz":                {needs: "nothing", open: true, probe: true},
		"GET /readyz":                 {needs: "nothing; any known caller sees the nodes", optional: true, probe: true},
		"GET /openapi.yaml":           {needs: "nothing", open: true},
		"GET /problems/{type}":        {needs: "nothing", open: true},
	}
}

// forbiddenError is errForbidden with what was missing.
type forbiddenError struct {
	who      string
	right    access.Right
	resource string
}

func (e *forbiddenError) Error() string {
	return fmt.Sprintf("%s does not have the right %s over %q", e.who, e.right, e.resource)
}

func (e *forbiddenError) Is(target error) bool { return target == errForbidden }

func may(who *access.Identity, right access.Right, resource string) error {
	if who.May(right, resource) {
		return nil
	}
	return &forbiddenError{who: who.Name(), right: right, resource: resource}
}

func ofLock(_ *Server, _ http.ResponseWriter, who *access.Identity, r *http.Request) error {
	resource, err := pathResource(r, "/locks/")
	if err != nil {
		return err
	}
	return may(who, access.Read, resource)
}

func ofRecord(_ *Server, _ http.ResponseWriter, who *access.Identity, r *http.Request) error {
	right := access.Acquire
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		right = access.Read
	}
	resource, err := pathResource(r, guardedPrefix)
	if err != nil {
		return err
	}
	return may(who, right, resource)
}

func ofHistory(_ *Server, _ http.ResponseWriter, who *access.Identity, r *http.Request) error {
	params, err := query(r, historyParameters...)
	if err != nil {
		return err
	}
	if err := lockcore.ValidateResource(params["resource"]); err != nil {
		return err
	}
	return may(who, access.Read, params["resource"])
}

// ofLease refuses as if the lease had ended: only its caller may know that it
// exists, and the Service refuses other callers in the same way. The handler gets the lease
// as it is opened here.
func ofLease(s *Server, w http.ResponseWriter, who *access.Identity, r *http.Request) error {
	lease, err := namedLease(w, r)
	if err != nil {
		return err
	}
	opened, err := lease.open(lockcore.WithCaller(r.Context(), who.Name()), s.Service)
	if err != nil {
		return err
	}
	for _, part := range opened.Terms().Parts {
		if !who.May(access.Acquire, part.Resource) {
			return lockcore.ErrNotHeld
		}
	}
	if rw, ok := w.(*responder); ok {
		rw.lease = lease
	}
	return nil
}

// currentLease is the path of the lease whose id is in the header Fencelock-Lease: a
// path gets into access logs, and a lease id is a secret.
const currentLease = "/leases/current"

// named is a lease that a request names by its id.
type named struct {
	id     string
	opened lockcore.OpenedLease // nil before the id is opened
}

// namedLease is the lease that the request names, which access control has opened if there is
// any. The error is a *lockcore.FieldError.
func namedLease(w http.ResponseWriter, r *http.Request) (named, error) {
	if rw, ok := w.(*responder); ok && rw.lease.opened != nil {
		return rw.lease, nil
	}
	id, err := header(r, wire.HeaderLease)
	if err == nil && id == "" {
		err = badField(wire.HeaderLease, "is required: the lease_id of the lease")
	}
	return named{id: id}, err
}

// open opens the id, once for all handlers of the request. Errors: of lockcore.Service.Open.
func (n *named) open(ctx context.Context, service lockcore.Service) (lockcore.OpenedLease, error) {
	if n.opened != nil {
		return n.opened, nil
	}
	opened, err := service.Open(ctx, n.id)
	if err == nil {
		n.opened = opened
	}
	return opened, err
}

// authorize puts the table's decision before a handler.
func (s *Server) authorize(method, pattern string, h handler) handler {
	d, decided := decisions()[method+" "+pattern]
	if !decided {
		d.check = func(_ *Server, _ http.ResponseWriter, who *access.Identity, _ *http.Request) error {
			return &forbiddenError{who: who.Name(), right: access.Admin}
		}
	}
	switch {
	case s.Access != nil && d.open:
		h = s.unasked(d, h)
	case s.Access != nil:
		h = s.checked(d, h)
	}
	if d.act != "" {
		h = s.audited(d.act, h)
	}
	return h
}

// checked authenticates the caller, and takes the decision.
func (s *Server) checked(d decision, h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		part := partOf(r)
		who, err := s.identify(r, part)
		switch {
		case d.optional && errors.Is(err, access.ErrNoCredentials):
			return s.unasked(d, h)(w, r)
		case err != nil:
			return s.unauthenticated(w, r, err)
		}
		if rw, ok := w.(*responder); ok {
			rw.who = who
		}
		if part == nil || !part.paid {
			if err := who.Request(); err != nil {
				connectionOf(r).slowDown() // a refusal costs the server as much as a stranger's
				return err
			}
		}
		connectionOf(r).trust()
		if d.check != nil {
			if err := d.check(s, w, who, r); err != nil {
				return err
			}
		}
		return h(w, r)
	}
}

// identify authenticates the caller. That of a batch has been.
func (s *Server) identify(r *http.Request, part *batchPart) (*access.Identity, error) {
	if part != nil {
		return part.who, nil
	}
	return s.Access.Identify(r)
}

// AuthorizeAdmin puts the admin listener's handler behind access control, for when
// it is not on loopback: the metrics need the right to read everything, the rest
// (profiles, which may hold secrets) the right to administer everything. Each
// request for the rest is audited.
func (s *Server) AuthorizeAdmin(next http.Handler) http.Handler {
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

func mayAll(right access.Right) func(*Server, http.ResponseWriter, *access.Identity, *http.Request) error {
	return func(_ *Server, _ http.ResponseWriter, who *access.Identity, _ *http.Request) error {
		if who.MayAll(right) {
			return nil
		}
		return &forbiddenError{who: who.Name(), right: right, resource: "*"}
	}
}

// unauthenticated refuses a caller that is not authenticated. Only the log says
// why: an error of the library names what is wrong with a JWT, and never the JWT.
func (s *Server) unauthenticated(w http.ResponseWriter, r *http.Request, err error) error {
	challenge := `Bearer realm="fencelock"`
	switch {
	case errors.Is(err, access.ErrBadCredentials):
		challenge += `, error="invalid_token"`
	case !errors.Is(err, access.ErrNoCredentials):
		return err
	}
	s.Logger.LogAttrs(r.Context(), slog.LevelDebug, "caller not authenticated",
		slog.String("request_id", w.Header().Get(wire.HeaderRequestID)), slog.Any("error", err))
	w.Header().Set("WWW-Authenticate", challenge)
	return errUnauthorized
}

// whileAllowed serves a request that may stay open for long. Its context ends once
// a new request would be refused, and its answer is then that refusal. h has to
// release what it was granted meanwhile.
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
	return s.unauthenticated(w, r, context.Cause(ctx)) //nolint:contextcheck // as above
}

// anyName lets every authenticated caller continue.
func anyName(*access.Identity) error { return nil }

// callerOf is the authenticated caller, nil without access control.
func callerOf(w http.ResponseWriter) *access.Identity {
	if rw, ok := w.(*responder); ok {
		return rw.who
	}
	return nil
}

// asCaller is the request's context for calls about leases, each of which is only
// its caller's.
func asCaller(w http.ResponseWriter, r *http.Request) context.Context {
	return onBehalfOf(r.Context(), callerOf(w))
}

// onBehalfOf has calls under ctx made for leases of who; nil for no access control.
func onBehalfOf(ctx context.Context, who *access.Identity) context.Context {
	if who == nil {
		return ctx
	}
	return lockcore.WithCaller(ctx, who.Name())
}

// mayRead says which resources the caller may read, by its rights at each call; nil
// for all. It is safe for concurrent use.
func (s *Server) mayRead(w http.ResponseWriter) func(resource string) bool {
	if s.Access == nil {
		return nil
	}
	who := callerOf(w)
	return func(resource string) bool { return who.Now().May(access.Read, resource) }
}

// allowed refuses a caller without the right acquire over each resource.
func (a *acquisition) allowed(who *access.Identity) error {
	if a.Resource != "" && a.Slots == 0 {
		return may(who, access.Acquire, a.Resource)
	}
	for _, resource := range append(lockcore.SlotNames(a.Resource, a.Slots), a.Resources...) {
		if err := may(who, access.Acquire, resource); err != nil {
			return err
		}
	}
	return nil
}

// audited writes a line to the audit log for each attempt at an administrative
// act, with its result.
func (s *Server) audited(act string, h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) (err error) {
		result := "failed" // of a panic
		defer func() { s.audit(w, r, act, result) }()
		if err = h(w, r); err == nil {
			result = "done"
		} else {
			result = strings.TrimPrefix(s.classify(err).Type, wire.ProblemPrefix)
		}
		return err
	}
}

func (s *Server) audit(w http.ResponseWriter, r *http.Request, act, result string) {
	identity := "-" // without access control
	if who := callerOf(w); who != nil {
		identity = who.Name()
	}
	resource := r.URL.Path // of the admin listener, whose paths hold no secret
	if r.URL.Path == breaksPath {
		resource = ""
		if rw, ok := w.(*responder); ok {
			resource = rw.acted // "" if the request was refused before its body was read
		}
	}
	s.Audit.LogAttrs(context.WithoutCancel(r.Context()), slog.LevelInfo, "audit",
		slog.String("identity", identity),
		slog.String("act", act),
		slog.String("resource", resource),
		slog.String("result", result),
		slog.String("request_id", w.Header().Get(wire.HeaderRequestID)),
		slog.String("remote", r.RemoteAddr))
}
