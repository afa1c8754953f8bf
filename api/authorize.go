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
	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// decision says what a route requires of its callers under access control.
type decision struct {
	needs string // for display, in the words of docs/reference/access.md
	// open routes ignore credentials. optional routes also accept requests without credentials.
	open, optional bool
	probe          bool // health probe
	// subject reads the subject of the request into w; nil if the subject is in the body.
	subject func(s *Server, w *exchange, r *http.Request) error
	// right is the right that the caller needs over the subject; None permits every authenticated caller.
	right access.Right
	every bool // it needs the right over all resources
	// undecided marks a route that is missing from the table.
	undecided bool
	// act names an administrative act, which is written to the audit log.
	act string
}

// decisions is the only table of who may do what, by method and pattern; HEAD is treated like GET. A route
// that is missing from it refuses every caller.
func decisions() map[string]decision {
	return map[string]decision{
		"POST /locks":                 {needs: "acquire of every resource that it names"}, // see asked.allowed
		"POST /locks/batch":           {needs: "what each of its operations needs"},
		"POST /cancel":                {needs: "acquire of every resource that it names"}, // see asked.allowed
		"GET /locks":                  {needs: "any known caller; it lists what the caller may read"},
		"GET /locks/*":                {needs: "read", subject: lockOfPath, right: access.Read},
		"GET /blocked":                {needs: "any known caller; it follows what the caller may read"},
		"POST /breaks":                {needs: "admin of the resource that it names", act: "break"}, // see breakRequest
		"GET /leases/current":         {needs: "the lease's owner, with acquire", subject: leaseOfHeader, right: access.Acquire},
		"POST /leases/current/extend": {needs: "the lease's owner, with acquire", subject: leaseOfHeader, right: access.Acquire},
		"DELETE /leases/current":      {needs: "the lease's owner, with acquire", subject: leaseOfHeader, right: access.Acquire},
		"GET /guarded":                {needs: "any known caller; it lists what the caller may read"},
		"GET /guarded/*":              {needs: "read", subject: recordOfPath, right: access.Read},
		"PUT /guarded/*":              {needs: "acquire", subject: recordOfPath, right: access.Acquire},
		"POST /guarded/*":             {needs: "acquire", subject: recordOfPath, right: access.Acquire},
		"DELETE /guarded/*":           {needs: "acquire", subject: recordOfPath, right: access.Acquire},
		"GET /history":                {needs: "read", subject: resourceOfQuery, right: access.Read},
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

// forbiddenError is errForbidden with the missing right.
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

func lockOfPath(_ *Server, w *exchange, r *http.Request) (err error) {
	w.resource, err = pathResource(r, "/locks/")
	return err
}

func recordOfPath(_ *Server, w *exchange, r *http.Request) (err error) {
	w.resource, err = pathResource(r, guardedPrefix)
	return err
}

func resourceOfQuery(_ *Server, w *exchange, r *http.Request) error {
	params, err := query(r, historyParameters...)
	if err != nil {
		return err
	}
	w.resource = params["resource"]
	return lockcore.ValidateResource(w.resource)
}

// leaseOfHeader reads the lease id. Under access control it opens the id, because the id contains the lease's
// resources.
func leaseOfHeader(s *Server, w *exchange, r *http.Request) error {
	id, err := header(r, wire.HeaderLease)
	switch {
	case err != nil:
		return err
	case id == "":
		return badField(wire.HeaderLease, "is required: the lease_id of the lease")
	}
	w.lease = named{caller: w.caller, id: id}
	if w.who != nil {
		_, err = w.lease.open(r.Context(), s.Service)
	}
	return err
}

// check refuses a caller without the right over the subject. For a lease, the refusal says that the lease has
// ended: only its caller may know that it exists, and the Service refuses other callers in the same way.
func (d *decision) check(w *exchange) error {
	switch opened := w.lease.opened; {
	case d.undecided:
		return &forbiddenError{who: w.who.Name(), right: access.Admin}
	case d.every && !w.who.MayAll(d.right):
		return &forbiddenError{who: w.who.Name(), right: d.right, resource: "*"}
	case d.every || d.right == access.None:
		return nil
	case opened == nil:
		return may(w.who, d.right, w.resource)
	default:
		for _, part := range opened.Terms().Parts {
			if !w.who.May(d.right, part.Resource) {
				return lockcore.ErrNotHeld
			}
		}
		return nil
	}
}

// currentLease is the path for the lease whose id is in the header Fencelock-Lease. Paths appear in access
// logs, so they must not contain lease ids, which are secret.
const currentLease = "/leases/current"

// named is a lease that a caller identifies by its id.
type named struct {
	caller lockcore.Caller
	id     string
	opened lockcore.OpenedLease // nil before the id is opened
}

// open opens the id, once for all handlers of the request. Errors: those of lockcore.Service.Open.
func (n *named) open(ctx context.Context, service lockcore.Service) (lockcore.OpenedLease, error) {
	if n.opened != nil {
		return n.opened, nil
	}
	opened, err := service.Open(ctx, n.caller, n.id)
	if err == nil {
		n.opened = opened
	}
	return opened, err
}

// authorize applies the table's decision before a handler.
func (s *Server) authorize(method, pattern string, h handler) handler {
	d, decided := decisions()[method+" "+pattern]
	if !decided {
		d.undecided = true
	}
	switch {
	case s.Access != nil && d.open:
		h = s.unasked(d, h)
	case s.Access != nil:
		h = s.checked(d, h)
	default:
		h = s.free(d, h)
	}
	if d.act != "" {
		h = s.audited(d.act, h)
	}
	return h
}

// free serves every caller, without access control.
func (s *Server) free(d decision, h handler) handler {
	return func(w *exchange, r *http.Request) error {
		w.caller = lockcore.Everyone
		if !d.probe {
			if err := s.admit(w, r); err != nil {
				return err
			}
		}
		if d.subject != nil {
			if err := d.subject(s, w, r); err != nil {
				return err
			}
		}
		return h(w, r)
	}
}

// checked authenticates the caller and applies the decision.
func (s *Server) checked(d decision, h handler) handler {
	return func(w *exchange, r *http.Request) error {
		who, err := s.identify(w, r)
		switch {
		case d.optional && errors.Is(err, access.ErrNoCredentials):
			return s.unasked(d, h)(w, r)
		case err != nil:
			return s.unauthenticated(w, r, err)
		}
		w.who, w.caller = who, lockcore.CallerNamed(who.Name())
		if err := s.counted(d, w, r); err != nil {
			return err
		}
		edge.Of(r).Trust(w.who.Name())
		if d.subject != nil {
			if err := d.subject(s, w, r); err != nil {
				return err
			}
		}
		if err := d.check(w); err != nil {
			return err
		}
		return h(w, r)
	}
}

// unasked serves a request that needs no credentials.
func (s *Server) unasked(d decision, h handler) handler {
	return func(w *exchange, r *http.Request) error {
		edge.Of(r).SlowDown()
		leave, ok := s.strangers.Enter(r, d.probe)
		if !ok {
			panic(http.ErrAbortHandler)
		}
		defer leave()
		err := h(w, r)
		if err == nil {
			_ = http.NewResponseController(w).Flush() // the stranger counts until it has read the response
		}
		return err
	}
}

// counted counts the request against the limits of its caller, unless its batch was counted, and against the
// limits of the server, unless it is a probe.
func (s *Server) counted(d decision, w *exchange, r *http.Request) error {
	if w.part == nil || !w.part.paid {
		if err := w.who.Request(); err != nil {
			return err
		}
	}
	if d.probe {
		return nil
	}
	return s.admit(w, r)
}

// identify authenticates the caller. The caller of a batch is authenticated already.
func (s *Server) identify(w *exchange, r *http.Request) (*access.Identity, error) {
	if w.part != nil {
		return w.part.who, nil
	}
	return s.Access.Identify(r)
}

// AuthorizeAdmin puts the admin listener's handler behind access control. It is for admin listeners that are
// not on loopback. Metrics need the right to read everything. The rest (profiles, which may hold secrets)
// needs the right to administer everything, and each request for it is written to the audit log.
func (s *Server) AuthorizeAdmin(next http.Handler) http.Handler {
	metrics := decision{right: access.Read, every: true}
	profiles := decision{right: access.Admin, every: true}
	pass := func(w *exchange, r *http.Request) error {
		next.ServeHTTP(w, r)
		return nil
	}
	router := chi.NewRouter()
	router.Use(s.instrument)
	router.Handle("/metrics", s.answer(s.checked(metrics, pass)))
	router.Handle("/*", s.answer(s.audited("profile", s.checked(profiles, pass))))
	return router
}

// unauthenticated refuses a caller that is not authenticated. Only the log contains the reason: the library's
// error says what is wrong with a JWT, but does not contain the JWT.
func (s *Server) unauthenticated(w *exchange, r *http.Request, err error) error {
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

// whileAllowed serves a long-lived request. When a new request would be refused, its context ends and it gets
// that refusal as its response. h must then release what it was granted.
func (s *Server) whileAllowed(w *exchange, r *http.Request, still func(*access.Identity) error, h handler) error {
	who := w.who
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

// mayRead returns a function that reports whether the caller may read a resource, by its rights at each call;
// nil means all. The function is safe for concurrent use.
func (s *Server) mayRead(w *exchange) func(resource string) bool {
	if s.Access == nil {
		return nil
	}
	who := w.who
	return func(resource string) bool { return who.Now().May(access.Read, resource) }
}

// mayAcquire refuses a caller without the right acquire over each resource of the request.
func mayAcquire(who *access.Identity, req *lockcore.Request) error {
	if req.Resource != "" && req.Slots == 0 {
		return may(who, access.Acquire, req.Resource)
	}
	for _, resource := range append(lockcore.SlotNames(req.Resource, req.Slots), req.Resources...) {
		if err := may(who, access.Acquire, resource); err != nil {
			return err
		}
	}
	return nil
}

// audited writes a line to the audit log for each attempt at an administrative
// act, with its result.
func (s *Server) audited(act string, h handler) handler {
	return func(w *exchange, r *http.Request) (err error) {
		result := "failed" // the result if the handler panics
		defer func() { s.audit(w, r, act, result) }()
		if err = h(w, r); err == nil {
			result = "done"
		} else {
			result = strings.TrimPrefix(s.classify(err).Type, wire.ProblemPrefix)
		}
		return err
	}
}

func (s *Server) audit(w *exchange, r *http.Request, act, result string) {
	identity := "-" // without access control
	if who := w.who; who != nil {
		identity = who.Name()
	}
	resource := r.URL.Path // a path of the admin listener, which contains no secret
	if r.URL.Path == breaksPath {
		resource = w.resource // "" if the request was refused before its body was read
	}
	s.Audit.LogAttrs(context.WithoutCancel(r.Context()), slog.LevelInfo, "audit",
		slog.String("identity", identity),
		slog.String("act", act),
		slog.String("resource", resource),
		slog.String("result", result),
		slog.String("request_id", w.Header().Get(wire.HeaderRequestID)),
		slog.String("remote", r.RemoteAddr))
}
