package api

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// Limits of requests that are the API's own; the others are lockcore's.
const (
	MaxBodyBytes       = 64 << 10
	MaxBodyDepth       = 64  // of arrays and objects, one in the other
	MaxIdempotencyKey  = 255 // characters of the header
	MaxCursorBytes     = 1024
	MaxPage            = 1000 // locks in a listing, attempts in a history
	DefaultPage        = 100
	bodyTimeout        = 10 * time.Second // for a request body to arrive
	releaseTimeout     = 5 * time.Second  // for a grant to be released
	guardTimeout       = 5 * time.Second  // for the guard's storage to answer
	answerTimeout      = 10 * time.Second // for a caller to take its answer
	soon               = time.Second      // when to try again where nothing better is known
	maxPooledBodyBytes = 2 * MaxBodyBytes
	maxStreamsOfCaller = events.MaxReaders / 4
	maxListsOfCaller   = 8 // under way or not read yet; each may take some megabytes
)

// Leases grants and ends leases.
type Leases interface {
	// Acquire grants a lease, perhaps after a wait in the queue, or tells whose it
	// is. Errors: *lockcore.FieldError, *lockcore.HeldError,
	// *lockcore.WaitTimeoutError, lockcore.ErrTooManyWaiters,
	// lockcore.ErrStopping, *lockcore.QuorumError,
	// lockcore.ErrIdempotencyMismatch, lockcore.ErrTokensExhausted, ctx.Err().
	Acquire(ctx context.Context, req lockcore.AcquireRequest) (lockcore.Lease, error)
	// Extend gives a lease a fresh TTL; 0 asks for the default. Errors:
	// *lockcore.FieldError, lockcore.ErrNotHeld,
	// lockcore.ErrMaxHold, *lockcore.QuorumError, ctx.Err().
	Extend(ctx context.Context, leaseID string, ttl time.Duration) (lockcore.Lease, error)
	// Release ends a lease. Errors: lockcore.ErrNotHeld, *lockcore.QuorumError, ctx.Err().
	Release(ctx context.Context, leaseID string) error
	// Lease looks at a lease. Errors as for Release.
	Lease(ctx context.Context, leaseID string) (lockcore.Lease, error)
	// ReadLeaseID verifies a lease id and tells its resources, and when the lease
	// was granted. Errors: lockcore.ErrNotHeld, *lockcore.QuorumError.
	ReadLeaseID(ctx context.Context, leaseID string) (resources []string, granted time.Time, err error)
	// EndOf asks the nodes how a lease ended whose end was not seen here. Errors:
	// lockcore.ErrNotHeld, *lockcore.QuorumError (the nodes cannot tell now), ctx.Err().
	EndOf(ctx context.Context, leaseID string) (lockcore.End, error)
}

// Locks is the public state of resources.
type Locks interface {
	// Inspect looks at one resource. Errors: *lockcore.FieldError, *lockcore.QuorumError, ctx.Err().
	Inspect(ctx context.Context, resource string) (lockcore.LockState, error)
	// List gives a page of the held resources. Errors as for Inspect.
	List(ctx context.Context, req lockcore.ListRequest) (lockcore.LockPage, error)
	// Break ends whatever lease holds resource. Errors: lockcore.ErrNotHeld and as for Inspect.
	Break(ctx context.Context, resource string) error
}

// Cluster tells whether this server may grant anything, and why not.
type Cluster interface {
	Status() lockcore.ClusterStatus
}

// Access knows the callers.
type Access interface {
	// Identify tells who sent the request. Errors: access.ErrNoCredentials,
	// access.ErrBadCredentials, access.ErrUnavailable, ctx.Err().
	Identify(r *http.Request) (*access.Identity, error)
	// Follow returns the context of a request of who that stays open for long,
	// which ends when who is locked out or still refuses, see access.Keeper.
	Follow(r *http.Request, who *access.Identity, still func(*access.Identity) error) (ctx context.Context, stop func())
}

// Options are what a Server serves. All are required unless said otherwise.
type Options struct {
	Leases  Leases
	Locks   Locks
	Cluster Cluster
	// Guard keeps the guarded records; nil if there is none, which the callers
	// of /guarded are told.
	Guard fencing.Guard
	// Access says who may do what (decisions); nil if anybody may do everything.
	Access Access
	// Hosts are the hosts that are answered; nil for all, which is for where
	// Access says who may do what.
	Hosts *Hosts
	// Audit gets a line for each administrative act, refused ones too; nil for Logger.
	Audit *slog.Logger
	// Proofs gives the keys that leases' fence_proof is made with, their latest
	// version; nil for no proofs.
	Proofs func() *fencing.ProofKeys
	// ProofRequired makes the guarded records demand a proof.
	ProofRequired bool
	// MaxTTL is the longest lease that may be asked for.
	MaxTTL  time.Duration
	Events  *events.Hub // gets what happens here, and is streamed by GET /events
	Console bool        // serve the page that shows it
	OpenAPI []byte      // what /openapi.yaml serves
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// MetricsPrefixes give the metrics of locks a label, the longest prefix that
	// a resource begins with. Few: each is a family of series of its own.
	MetricsPrefixes []string
	// Tracer, if not nil, makes spans of requests.
	Tracer trace.Tracer
}

// Server is the HTTP API. It is an http.Handler and safe for concurrent use.
type Server struct {
	Options
	router  *chi.Mux
	kinds   []problem
	pages   map[string][]byte // the problems' pages by slug
	metrics metrics
	leases  *lifecycle
	streams share     // of GET /events
	lists   share     // of GET /locks
	bodies  sync.Pool // of *bytes.Buffer: requests in, responses out
}

// New makes the handler of the public listener.
func New(opts Options) *Server {
	s := &Server{
		Options: opts,
		router:  chi.NewRouter(),
		kinds:   problems(),
		pages:   renderPages(problems()),
		metrics: newMetrics(opts.Metrics),
		streams: share{max: maxStreamsOfCaller},
		lists:   share{max: maxListsOfCaller},
	}
	if s.Audit == nil {
		s.Audit = s.Logger
	}
	s.leases = &lifecycle{service: s.Leases, events: s.Events, tracer: s.Tracer}
	s.leases.metrics = newLockMetrics(s.Metrics, s.MetricsPrefixes, s.leases.live.Held)
	s.routes()
	return s
}

// Run finds out what becomes of the leases that were granted here and end by
// themselves, until ctx ends.
func (s *Server) Run(ctx context.Context) { s.leases.run(ctx) }

// ServeHTTP gives the request's body bodyTimeout to arrive, whoever reads it: of
// a body that nobody wants, or not to its end, net/http itself reads what is left,
// and without a deadline for as long as the client cares to send.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // a test's writer has none
	}
	if len(r.TransferEncoding) > 0 {
		w.Header().Set("Connection", "close") // what comes behind it is not checked, see headerCheck
	}
	s.router.ServeHTTP(w, r)
}

func (s *Server) routes() {
	s.router.Use(s.instrument, s.trace)
	if s.Hosts != nil {
		s.router.Use(func(next http.Handler) http.Handler { return s.OnlyHosts(*s.Hosts, next) })
	}
	s.router.NotFound(s.answer(func(http.ResponseWriter, *http.Request) error { return errUnknownPath }))
	s.router.MethodNotAllowed(s.answer(s.methodNotAllowed))

	s.route(http.MethodPost, "/locks", s.acquire)
	s.get("/locks", s.lists.within(errTooManyLists, s.list))
	s.get("/locks/*", s.inspect)
	s.route(http.MethodDelete, "/locks/*", s.breakLock)

	s.get("/leases/{lease_id}", s.lease)
	s.route(http.MethodPost, "/leases/{lease_id}/extend", s.extend)
	s.route(http.MethodDelete, "/leases/{lease_id}", s.release)

	s.get("/guarded/*", s.readRecord)
	s.route(http.MethodPut, "/guarded/*", s.writeRecord)

	s.get("/events", s.events)
	s.consoleRoutes()

	s.get("/healthz", s.healthz)
	s.get("/readyz", s.readyz)
	s.get("/openapi.yaml", s.openapi)
	s.get("/problems/{type}", s.problemPage)
}

// route serves a method of a path to those whom decisions lets in.
func (s *Server) route(method, pattern string, h handler) {
	s.router.Method(method, pattern, s.answer(s.guard(method, pattern, h)))
}

// get serves HEAD wherever it serves GET; net/http leaves the body out.
func (s *Server) get(pattern string, h handler) {
	s.route(http.MethodGet, pattern, h)
	s.router.Head(pattern, s.answer(s.guard(http.MethodGet, pattern, h)))
}

// methodNotAllowed names the methods that the path knows. A method that the
// router has never heard of comes here for every path.
func (s *Server) methodNotAllowed(w http.ResponseWriter, r *http.Request) error {
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.Path
	}
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete} {
		if s.router.Match(chi.NewRouteContext(), method, path) {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		return errUnknownPath
	}
	return refuseMethod(w, allowed...)
}

func refuseMethod(w http.ResponseWriter, allowed ...string) error {
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return errMethodNotAllowed
}
