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
	"github.com/fencelock/fencelock/lockcore"
)

// statusClientGone is logged and counted for requests whose caller hung up before the response. It is never
// sent.
const statusClientGone = 499

// maxRequestID bounds the length of an X-Request-Id that the server adopts from the caller.
const maxRequestID = 64

// metrics are the metrics of the public listener.
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

// exchange is one request on its way through this package: its caller, its subject, and the state of its
// response.
type exchange struct {
	http.ResponseWriter
	begun    time.Time
	part     *batchPart       // set if the request is an operation of a batch
	caller   lockcore.Caller  // on whose behalf the Service is called; zero until access control has identified the caller
	who      *access.Identity // the caller's rights and limits; nil without access control
	resource string           // the request's resource after it was read; "" if there is none
	lease    named            // the request's lease, likewise
	status   int              // of the response; 0 before its header is written
	within   time.Duration    // how long writing the response may take; 0 for answerTimeout
	expense  expense          // taken from the caller's share of the memory
}

// exchangeOf returns the exchange that instrument made of a request's writer.
func exchangeOf(w http.ResponseWriter) *exchange {
	if x, ok := w.(*exchange); ok {
		return x
	}
	return &exchange{ResponseWriter: w, begun: time.Now()} // for a listener without instrument
}

func (w *exchange) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK { // a 1xx is not the final response
		w.status = status
		w.limit()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *exchange) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
		w.limit()
	}
	return w.ResponseWriter.Write(p)
}

// limit bounds how long writing the response may take. net/http's own limit counts from the request, and so
// has to allow for the longest wait.
func (w *exchange) limit() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(cmp.Or(w.within, answerTimeout))) // a test's writer has none
}

// Unwrap lets http.ResponseController through.
func (w *exchange) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// instrument is the one middleware: request id, panics, metrics, access log.
func (s *Server) instrument(next http.Handler) http.Handler {
	return http.HandlerFunc(func(inner http.ResponseWriter, r *http.Request) {
		w := &exchange{ResponseWriter: inner, begun: time.Now()}
		w.part, _ = r.Context().Value(batchPartKey{}).(*batchPart)
		w.Header()[wire.HeaderRequestID] = []string{requestID(r)}
		defer func() {
			aborted := s.recovered(w, r, recover())
			w.expense.end()
			s.record(w, r)
			if aborted {
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(w, r)
		w.settle(r)
	})
}

// recovered turns a panic into a problem. It reports whether the connection must be closed, because a
// response was begun or the handler aborted.
func (s *Server) recovered(w *exchange, r *http.Request, cause any) (abort bool) {
	if cause == nil {
		return false
	}
	if cause == http.ErrAbortHandler { //nolint:errorlint // net/http compares it in the same way
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

// record counts and logs a request. It logs only the path's pattern, never the path, because a path may
// contain a lease id, which is a secret.
func (s *Server) record(w *exchange, r *http.Request) {
	status := cmp.Or(w.status, http.StatusOK) // net/http sends this status if a handler sets none
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

// attributes returns the log attributes that identify the request.
func attributes(w *exchange, r *http.Request) []slog.Attr {
	return []slog.Attr{
		slog.String("request_id", w.Header().Get(wire.HeaderRequestID)),
		slog.String("method", r.Method),
		slog.String("route", routePattern(r)),
	}
}

// routePattern returns the request's route, "unmatched" if there is none.
func routePattern(r *http.Request) string {
	if pattern := chi.RouteContext(r.Context()).RoutePattern(); pattern != "" {
		return pattern
	}
	return "unmatched"
}

// knownMethod replaces invented methods in the metrics' labels.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete:
		return method
	default:
		return "other"
	}
}

// requestID returns the caller's X-Request-Id if it is fit for a log; otherwise it makes a new id.
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
