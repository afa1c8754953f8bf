package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/fencelock/fencelock/lockcore/redlock"
)

// traceTimeout bounds the sending of the last spans when the service ends.
const traceTimeout = 5 * time.Second

// tracing sends spans by OTLP over HTTP. Where to, how many and under which name
// is said by OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT,
// OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME, …), which its SDK reads.
type tracing struct{ provider *sdktrace.TracerProvider }

// openTracing is nil unless the configuration asks for traces. A collector that
// is away costs nothing but the spans, and the log says so.
func openTracing(ctx context.Context, cfg config, logger *slog.Logger) (*tracing, error) {
	if !cfg.tracing {
		return nil, nil //nolint:nilnil // no tracing is a configuration, not a failure
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { logger.Warn("tracing", "error", err) }))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("FENCELOCK_TRACING=otlp: %w; see the OTEL_EXPORTER_OTLP_… variables", err)
	}
	described, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "fencelock"), attribute.String("service.version", version())),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return &tracing{sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(described))}, nil
}

// tracer is nil without tracing.
func (t *tracing) tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer("github.com/fencelock/fencelock")
}

// close sends what is left.
func (t *tracing) close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceTimeout)
	defer cancel()
	return t.provider.Shutdown(ctx)
}

// traceVotes makes the Locker tell the nodes' votes, as events of the span that
// the request's context carries.
func (t *tracing) traceVotes(c *redlock.Config) {
	if t == nil {
		return
	}
	c.Traced = func(ctx context.Context) bool { return trace.SpanFromContext(ctx).IsRecording() }
	c.Trace = func(ctx context.Context, a redlock.Attempt) {
		span := trace.SpanFromContext(ctx)
		for _, vote := range a.Votes {
			at := []trace.EventOption{trace.WithAttributes(voteAttributes(vote)...)}
			if !vote.At.IsZero() {
				at = append(at, trace.WithTimestamp(vote.At))
			}
			span.AddEvent("vote", at...)
		}
		span.AddEvent("decided", trace.WithAttributes(attribute.String("fencelock.verdict", a.Verdict.String())))
	}
}

func voteAttributes(vote redlock.VoteTaken) []attribute.KeyValue {
	attributes := []attribute.KeyValue{attribute.String("fencelock.node", vote.Node), attribute.String("fencelock.answer", vote.Reason)}
	if vote.Grant.Valid() {
		attributes = append(attributes, attribute.Int64("fencelock.grant", int64(vote.Grant)))
	}
	return attributes
}
