package api

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/fencelock/fencelock/lockcore"
)

// Spans of our own, and not those of a ready-made middleware: that would put
// the path into an attribute, and a path may hold a lease id, which is a secret.

// trace makes a span of every request, under the caller's (traceparent).
func (s *Server) trace(next http.Handler) http.Handler {
	if s.Tracer == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		method := knownMethod(r.Method)
		ctx, span := s.Tracer.Start(ctx, method, trace.WithSpanKind(trace.SpanKindServer))
		defer func() {
			route := routePattern(r)
			span.SetName(method + " " + route)
			span.SetAttributes(attribute.String("http.request.method", method), attribute.String("http.route", route))
			if rw, ok := w.(*responder); ok {
				finishSpan(span, rw)
			}
			span.End()
		}()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// finishSpan tells how the request went. One that was parked is answered later:
// its acquire has a span that lasts as long.
func finishSpan(span trace.Span, w *responder) {
	if w.taken {
		span.SetAttributes(attribute.Bool("fencelock.parked", true))
		return
	}
	status := w.status
	if status == 0 {
		status = statusClientGone
	}
	span.SetAttributes(attribute.Int("http.response.status_code", status))
	if status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, "")
	}
}

// aside is a context for what outlives the request: it has nothing of it but
// the place in the trace.
func (s *Server) aside(r *http.Request) context.Context {
	if s.Tracer == nil {
		return context.Background()
	}
	return trace.ContextWithSpanContext(context.Background(), trace.SpanContextFromContext(r.Context()))
}

// traceAcquire begins the span of an acquire, which the Locker adds the votes
// to. finish ends it.
func (s *Server) traceAcquire(ctx context.Context, req *lockcore.AcquireRequest) (_ context.Context, finish func(*lockcore.Lease, error)) {
	if s.Tracer == nil {
		return ctx, func(*lockcore.Lease, error) {}
	}
	ctx, span := s.Tracer.Start(ctx, "acquire", trace.WithAttributes(
		attribute.Int64("fencelock.ttl_ms", req.TTL.Milliseconds()),
		attribute.Int64("fencelock.wait_ms", req.Wait.Milliseconds())))
	if req.Resource != "" {
		span.SetAttributes(attribute.String("fencelock.resource", req.Resource))
	} else {
		span.SetAttributes(attribute.StringSlice("fencelock.resources", req.Resources))
	}
	return ctx, func(lease *lockcore.Lease, err error) {
		outcome := outcomeGranted
		if err != nil {
			outcome = outcomeOf(err)
		} else if lease.Token.Valid() {
			span.SetAttributes(attribute.Int64("fencelock.token", int64(lease.Token)))
		}
		span.SetAttributes(attribute.String("fencelock.outcome", outcome))
		if outcome == outcomeNoQuorum || outcome == outcomeUnexpected {
			span.SetStatus(codes.Error, outcome)
		}
		span.End()
	}
}
