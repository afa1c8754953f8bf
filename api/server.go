package api

import (
	"cmp"
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
	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/places"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// Limits of requests that only the API has; the others are lockcore's.
const (
	MaxBodyBytes       = 64 << 10
	MaxBodyDepth       = 64  // how deep arrays and objects may nest
	maxIdempotencyKey  = 255 // bytes of the header
	maxCursorBytes     = 1024
	MaxPage            = 1000 // locks of a listing, attempts of a history
	defaultPage        = 100
	defaultWaiters     = 10_000
	defaultRecords     = 100_000
	defaultRecordBytes = 256 << 20
	bodyTimeout        = 10 * time.Second       // how long a request body may take to arrive
	releaseTimeout     = 5 * time.Second        // how long releasing an undelivered grant may take
	guardTimeout       = 5 * time.Second        // how long the guard's storage may take
	answerTimeout      = 10 * time.Second       // how long a caller may take to read its response
	refusalTimeout     = time.Second            // the same for a refusal
	watchAfter         = 250 * time.Millisecond // how long a request waits before its connection is watched for a hang-up
	soon               = time.Second            // when to try again, if no better time is known
	maxPooledBodyBytes = 2 * MaxBodyBytes
	maxListsOfCaller   = 8 // under way or unread; each may take some megabytes
)

// Options are the parts that a Server serves. All are required unless their comment says otherwise.
type Options struct {
	Service lockcore.Service
	// Guard keeps the guarded records; nil for none: then /guarded responds with 501.
	Guard fencing.Guard
	// Access is access control. If it is nil, every caller may do everything.
	Access *access.Keeper
	// Hosts are the host names that the server accepts; nil accepts all, which is only safe with access
	// control.
	Hosts *edge.Hosts
	// Audit gets a line for each administrative act, even a refused one; nil means Logger.
	Audit *slog.Logger
	// Proofs returns the present keys for the leases' fencing_proof; nil for no proofs.
	Proofs func() *fencing.ProofKeys
	// ProofRequired makes guarded records require a proof.
	ProofRequired bool
	// MaxWaiters bounds the places of requests in this server's queues; 0 means 10,000.
	MaxWaiters int
	// MaxRecords bounds what Guard keeps; 0 means 100,000 records and 256 MiB.
	MaxRecords fencing.Usage
	Events     *events.Hub // gets this server's events; GET /events streams them
	Console    bool        // whether to serve the console
	OpenAPI    []byte      // the contents of /openapi.yaml
	Logger     *slog.Logger
	Metrics    prometheus.Registerer
	// MetricsPrefixes are labels of lock metrics. A resource counts under the longest of these prefixes
	// that it begins with. Each prefix adds a set of series, so use few.
	MetricsPrefixes []string
	// Tracer makes spans of requests, if it is not nil.
	Tracer trace.Tracer
}

// Server is the HTTP API. It is an http.Handler and safe for concurrent use.
type Server struct {
	Options
	router    *chi.Mux
	kinds     []problem
	pages     map[string][]byte // the problems' pages, by slug
	metrics   metrics
	leases    *lifecycle
	guard     *guardWatch
	records   *records
	strangers edge.Strangers
	turns     *turns    // limits running batches
	crew      crew      // runs the operations of batches
	lists     share     // limits GET /locks, /blocked and /guarded
	budget    *budget   // limits the memory of requests and responses
	refusals  share     // limits unread refusals of callers that exceed their share of the budget
	bodies    sync.Pool // of *bytes.Buffer, for the bodies of requests and responses
}

// New makes the handler of the public listener.
func New(opts Options) *Server {
	s := &Server{
		Options:  opts,
		router:   chi.NewRouter(),
		kinds:    problems(),
		pages:    renderPages(problems()),
		metrics:  newMetrics(opts.Metrics),
		turns:    newTurns(),
		crew:     make(crew),
		lists:    share{max: maxListsOfCaller},
		budget:   newBudget(),
		refusals: share{max: maxUnreadRefusals},
	}
	if s.Audit == nil {
		s.Audit = s.Logger
	}
	s.leases = &lifecycle{service: s.Service, waits: places.New(cmp.Or(s.MaxWaiters, defaultWaiters)), events: s.Events, tracer: s.Tracer}
	s.leases.metrics = newLockMetrics(s.Metrics, s.MetricsPrefixes, s.leases.live.Held, s.leases.waits.Kept)
	s.records = newRecords(s.Guard, fencing.Usage{
		Records: cmp.Or(s.MaxRecords.Records, defaultRecords), Bytes: cmp.Or(s.MaxRecords.Bytes, defaultRecordBytes),
	}, s.Metrics)
	s.guard = newGuardWatch(s.Guard, s.records, s.Metrics, s.Logger)
	s.routes()
	return s
}

// Run finds out how leases granted here ended without a release, and checks the guard, until ctx ends.
func (s *Server) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { s.guard.run(ctx) })
	s.leases.run(ctx)
	running.Wait()
}

// ServeHTTP limits how long the request's body may take to arrive, whoever reads it: net/http itself reads
// what a handler leaves unread, without a deadline.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.Access == nil {
		edge.Of(r).Trust("") // without access control there are no strangers
	}
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // a test's writer has no deadline
	}
	if len(r.TransferEncoding) > 0 {
		w.Header().Set("Connection", "close") // because edge does not check what follows such a body
	}
	s.router.ServeHTTP(w, r)
}

func (s *Server) routes() {
	s.router.Use(s.instrument, s.trace)
	if s.Hosts != nil {
		s.router.Use(func(next http.Handler) http.Handler { return s.OnlyHosts(*s.Hosts, next) })
	}
	s.router.NotFound(s.answer(func(*exchange, *http.Request) error { return errUnknownPath }))
	s.router.MethodNotAllowed(s.answer(s.methodNotAllowed))

	s.route(http.MethodPost, "/locks", s.acquire)
	s.route(http.MethodPost, "/locks/batch", s.batch)
	s.route(http.MethodPost, "/cancel", s.cancel)
	s.get("/locks", s.lists.within(errListLimit, s.list), listParameters...)
	s.get("/locks/*", s.inspect)
	s.get("/blocked", s.lists.within(errListLimit, s.blocked), blockedParameters...)
	s.route(http.MethodPost, breaksPath, s.breakLock)

	s.get(currentLease, s.lease)
	s.route(http.MethodPost, currentLease+"/extend", s.extend)
	s.route(http.MethodDelete, currentLease, s.release)

	s.get("/guarded", s.lists.within(errListLimit, s.listRecords), recordParameters...)
	s.get("/guarded/*", s.readRecord)
	s.route(http.MethodPut, "/guarded/*", s.changeRecord)
	s.route(http.MethodPost, "/guarded/*", s.changeRecord)
	s.route(http.MethodDelete, "/guarded/*", s.changeRecord)
	s.get("/history", s.history, historyParameters...)

	s.get("/events", s.events, eventParameters...)
	s.consoleRoutes()

	s.get("/activity", s.activity)
	s.get("/whoami", s.whoami)
	s.get("/healthz", s.healthz)
	s.get("/readyz", s.readyz)
	s.get("/openapi.yaml", s.openapi)
	s.get("/problems/{type}", s.problemPage)
}

// route serves a method of a path as decisions allows. It refuses query parameters other than those named.
func (s *Server) route(method, pattern string, h handler, parameters ...string) {
	s.router.Method(method, pattern, s.answer(s.authorize(method, pattern, onlyParameters(h, parameters))))
}

// get serves HEAD together with GET; net/http omits the body.
func (s *Server) get(pattern string, h handler, parameters ...string) {
	s.route(http.MethodGet, pattern, h, parameters...)
	h = onlyParameters(h, parameters)
	s.router.Head(pattern, s.answer(s.authorize(http.MethodGet, pattern, h)))
}

// methodNotAllowed names the path's methods in its refusal. The router calls it for every path if it does
// not know the method.
func (s *Server) methodNotAllowed(w *exchange, r *http.Request) error {
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

func refuseMethod(w *exchange, allowed ...string) error {
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return errMethodNotAllowed
}

// OnlyHosts refuses requests for other hosts. It is for listeners without access control.
func (s *Server) OnlyHosts(hosts edge.Hosts, next http.Handler) http.Handler {
	return s.answer(func(w *exchange, r *http.Request) error {
		if err := hosts.Check(r.Host); err != nil {
			return err
		}
		next.ServeHTTP(w, r)
		return nil
	})
}
