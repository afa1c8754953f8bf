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
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/places"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// Limits of requests that are the API's own; the others are lockcore's.
const (
	MaxBodyBytes       = 64 << 10
	MaxBodyDepth       = 64  // of arrays and objects, one in the other
	MaxIdempotencyKey  = 255 // bytes of the header
	MaxCursorBytes     = 1024
	MaxPage            = 1000 // locks of a listing, attempts of a history
	DefaultPage        = 100
	defaultWaiters     = 10_000
	defaultRecords     = 100_000
	defaultRecordBytes = 256 << 20
	bodyTimeout        = 10 * time.Second // for a request body to arrive
	releaseTimeout     = 5 * time.Second  // for a grant to be released
	guardTimeout       = 5 * time.Second  // for the guard's storage to answer
	answerTimeout      = 10 * time.Second // for a caller to take its answer
	soon               = time.Second      // when to try again where nothing better is known
	maxPooledBodyBytes = 2 * MaxBodyBytes
	maxStreamsOfCaller = events.MaxReaders / 4
	maxListsOfCaller   = 8 // in flight or not read yet; each may take some megabytes
)

// Options are what a Server serves. All are required unless said otherwise.
type Options struct {
	Service lockcore.Service
	// Guard keeps the guarded records; nil for none: /guarded answers 501.
	Guard fencing.Guard
	// Access is access control; nil for none: every caller may do everything.
	Access *access.Keeper
	// Hosts are the hosts that the server answers to; nil for all, which is for
	// servers with access control.
	Hosts *Hosts
	// Audit gets a line for each administrative act, also a refused one; nil for Logger.
	Audit *slog.Logger
	// Proofs gives the latest keys for leases' fencing_proof; nil for no proofs.
	Proofs func() *fencing.ProofKeys
	// ProofRequired makes the guarded records demand a proof.
	ProofRequired bool
	// MaxWaiters bounds the places of requests in queues here; 0 for 10,000.
	MaxWaiters int
	// MaxRecords bounds what Guard keeps; 0 for 100,000 records and 256 MiB.
	MaxRecords fencing.Usage
	Events     *events.Hub // gets this server's events, and is streamed by GET /events
	Console    bool        // serve the console
	OpenAPI    []byte      // what /openapi.yaml serves
	Logger     *slog.Logger
	Metrics    prometheus.Registerer
	// MetricsPrefixes give the metrics of locks a label: the longest of these that
	// the resource begins with. Keep them few: each adds a set of series.
	MetricsPrefixes []string
	// Tracer, if not nil, makes spans of requests.
	Tracer trace.Tracer
}

// Server is the HTTP API. It is an http.Handler and safe for concurrent use.
type Server struct {
	Options
	router    *chi.Mux
	kinds     []problem
	pages     map[string][]byte // the problems' pages by slug
	metrics   metrics
	leases    *lifecycle
	guard     *guardWatch
	records   *records
	strangers strangers
	turns     *turns    // of POST /locks/batch
	crew      crew      // of its operations
	streams   share     // of GET /events
	lists     share     // of GET /locks
	bodies    sync.Pool // of *bytes.Buffer: requests in, responses out
}

// New makes the handler of the public listener.
func New(opts Options) *Server {
	s := &Server{
		Options: opts,
		router:  chi.NewRouter(),
		kinds:   problems(),
		pages:   renderPages(problems()),
		metrics: newMetrics(opts.Metrics),
		turns:   newTurns(),
		crew:    make(crew),
		streams: share{max: maxStreamsOfCaller},
		lists:   share{max: maxListsOfCaller},
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

// Run finds out how the leases that were granted here ended without a release, and
// checks the guard, until ctx ends.
func (s *Server) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { s.guard.run(ctx) })
	s.leases.run(ctx)
	running.Wait()
}

// ServeHTTP gives the request's body bodyTimeout to arrive, whoever reads it: what
// a handler leaves of a body net/http reads itself, and without a deadline.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.Access == nil {
		connectionOf(r).trust() // nobody has credentials
	}
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // a test's writer has none
	}
	if len(r.TransferEncoding) > 0 {
		w.Header().Set("Connection", "close") // headerCheck does not look behind such a body
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
	s.route(http.MethodPost, "/locks/batch", s.batch)
	s.route(http.MethodPost, "/cancel", s.cancel)
	s.get("/locks", s.lists.within(errListLimit, s.list), listParameters...)
	s.get("/locks/*", s.inspect)
	s.route(http.MethodPost, breaksPath, s.breakLock)

	s.get(currentLease, s.lease)
	s.route(http.MethodPost, currentLease+"/extend", s.extend)
	s.route(http.MethodDelete, currentLease, s.release)

	s.get("/guarded", s.lists.within(errListLimit, s.listRecords), recordParameters...)
	s.get("/guarded/*", s.readRecord)
	s.route(http.MethodPut, "/guarded/*", s.writeRecord)
	s.route(http.MethodPost, "/guarded/*", s.claimRecord)
	s.route(http.MethodDelete, "/guarded/*", s.deleteRecord)
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

// route serves a method of a path as decisions allows, with no other query parameters
// than those named.
func (s *Server) route(method, pattern string, h handler, parameters ...string) {
	s.router.Method(method, pattern, s.answer(s.authorize(method, pattern, onlyParameters(h, parameters))))
}

// get serves HEAD wherever it serves GET; net/http leaves the body out.
func (s *Server) get(pattern string, h handler, parameters ...string) {
	s.route(http.MethodGet, pattern, h, parameters...)
	h = onlyParameters(h, parameters)
	s.router.Head(pattern, s.answer(s.authorize(http.MethodGet, pattern, h)))
}

// methodNotAllowed names the methods of the path. The router calls it for every
// path when it does not know the method.
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
