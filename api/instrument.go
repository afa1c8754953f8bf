package api

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/wire"
)

// statusClientGone is logged and counted where no answer could be given; it is never sent.
const statusClientGone = 499

// maxRequestID bounds an X-Request-Id that is taken over from the caller.
const maxRequestID = 64

// metrics of the public listener.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(registry prometheus.Registerer) metrics {
	m := metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencelock_http_requests_total",
			Help: "Completed HTTP requests, by route pattern, method and status (499: the caller closed the connection).",
		}, []string{"route", "method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fencelock_http_request_duration_seconds",
			Help:    "Time from a request's header to the end of its response, including the wait in the queue.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 600},
		}, []string{"route", "method"}),
	}
	registry.MustRegister(m.requests, m.seconds)
	return m
}

// responder remembers the status of a response.
type responder struct {
	http.ResponseWriter
	begun  time.Time
	who    *access.Identity // the caller; nil without access control
	lease  named            // the lease that access control has opened
	acted  string           // the resource of an administrative act, for the audit log
	status int              // 0 until the header was written
	within time.Duration    // how long the answer may be on its way; 0 for answerTimeout
}

func (w *responder) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK { // a 1xx is not the answer
		w.status = status
		w.limit()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *responder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
		w.limit()
	}
	return w.ResponseWriter.Write(p)
}

// limit bounds how long the answer may be on its way. net/http's own limit counts
// from the request on, and so has to allow for the longest wait.
func (w *responder) limit() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(cmp.Or(w.within, answerTimeout))) // a test's writer has none
}

// Unwrap lets http.ResponseController through.
func (w *responder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// instrument is the one middleware: request id, panics, metrics, access log.
func (s *Server) instrument(next http.Handler) http.Handler {
	return http.HandlerFunc(func(inner http.ResponseWriter, r *http.Request) {
		w := &responder{ResponseWriter: inner, begun: time.Now()}
		w.Header()[wire.HeaderRequestID] = []string{requestID(r)}
		defer func() {
			aborted := s.recovered(w, r, recover())
			s.record(w, r)
			if aborted {
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// recovered answers a panic with a problem. It reports whether the connection
// has to be cut: an answer was begun, or the handler aborted.
func (s *Server) recovered(w *responder, r *http.Request, cause any) (abort bool) {
	if cause == nil {
		return false
	}
	if cause == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so, too
		w.status = statusClientGone
		return true
	}
	s.Logger.LogAttrs(context.WithoutCancel(r.Context()), slog.LevelError, "panic", append(attributes(w, r),
		slog.String("panic", fmt.Sprint(cause)),
		slog.String("stack", string(debug.Stack())))...)
	if w.status != 0 {
		return true
	}
	_ = s.writeRefusal(w, s.classify(errInternal))
	return false
}

// record counts and logs a request. The path is never logged, only its pattern: a
// path may hold a lease id, which is a secret.
func (s *Server) record(w *responder, r *http.Request) {
	status := cmp.Or(w.status, http.StatusOK) // what net/http sends for a handler that says nothing
	took := time.Since(w.begun)
	method, route := knownMethod(r.Method), routePattern(r)
	s.metrics.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	s.metrics.seconds.WithLabelValues(route, method).Observe(took.Seconds())
	if s.Logger.Enabled(r.Context(), slog.LevelDebug) {
		ctx := context.WithoutCancel(r.Context())
		s.Logger.LogAttrs(ctx, slog.LevelDebug, "request", append(attributes(w, r),
			slog.Int("status", status),
			slog.Float64("ms", float64(took.Microseconds())/1000),
			slog.String("remote", r.RemoteAddr))...)
	}
}

// attributes say in the log which request it is.
func attributes(w http.ResponseWriter, r *http.Request) []slog.Attr {
	return []slog.Attr{
		slog.String("request_id", w.Header().Get(wire.HeaderRequestID)),
		slog.String("method", r.Method),
		slog.String("route", routePattern(r)),
	}
}

// routePattern is the route that the request took, "unmatched" if none.
func routePattern(r *http.Request) string {
	if pattern := chi.RouteContext(r.Context()).RoutePattern(); pattern != "" {
		return pattern
	}
	return "unmatched"
}

// knownMethod keeps invented methods out of the metrics' labels.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete:
		return method
	default:
		return "other"
	}
}

// requestID takes the caller's X-Request-Id over if it is fit for a log, and
// makes one up otherwise.
func requestID(r *http.Request) string {
	if id := r.Header.Get(wire.HeaderRequestID); fitForLog(id) {
		return id
	}
	return strconv.FormatUint(rand.Uint64()|1<<63, 16) //nolint:gosec // a name, not a secret; 16 digits
}

func fitForLog(id string) bool {
	if len(id) == 0 || len(id) > maxRequestID {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}
