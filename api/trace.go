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

// The spans are made here and not by a standard middleware, because that would put the path into an
// attribute. A path may contain a lease id, which is a secret.

// trace makes a span of every request, as a child of the caller's span (traceparent).
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
			finishSpan(span, exchangeOf(w))
			span.End()
		}()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// finishSpan records the status.
func finishSpan(span trace.Span, w *exchange) {
	status := w.status
	if status == 0 {
		status = statusClientGone
	}
	span.SetAttributes(attribute.Int("http.response.status_code", status))
	if status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, "")
	}
}

// startAcquire begins the span of an acquire, to which the Service adds the votes; nil without a tracer.
// endAcquire ends it.
func startAcquire(ctx context.Context, tracer trace.Tracer, req *lockcore.Request) (context.Context, trace.Span) {
	if tracer == nil {
		return ctx, nil
	}
	ctx, span := tracer.Start(ctx, "acquire", trace.WithAttributes(
		attribute.Int64("fencelock.ttl_ms", req.TTL.Milliseconds()),
		attribute.Int64("fencelock.wait_ms", req.Wait.Milliseconds())))
	if req.Resource != "" {
		span.SetAttributes(attribute.String("fencelock.resource", req.Resource))
	} else {
		span.SetAttributes(attribute.StringSlice("fencelock.resources", req.Resources))
	}
	return ctx, span
}

func endAcquire(span trace.Span, lease *lockcore.Lease, outcome string) {
	if span == nil {
		return
	}
	if lease.Token.Valid() {
		span.SetAttributes(attribute.Int64("fencelock.token", int64(lease.Token)))
	}
	span.SetAttributes(attribute.String("fencelock.outcome", outcome))
	if outcome == outcomeNoQuorum || outcome == outcomeUnexpected {
		span.SetStatus(codes.Error, outcome)
	}
	span.End()
}
