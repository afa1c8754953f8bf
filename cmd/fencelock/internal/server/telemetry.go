package server

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

	"github.com/fencelock/fencelock/cmd/fencelock/internal/version"
)

// traceTimeout bounds how long the last spans may take to be sent when the service ends.
const traceTimeout = 5 * time.Second

// openTracing sends spans by OTLP over HTTP. Destination, sampling and service name come from
// OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME, …),
// which its SDK reads. While the collector does not respond, spans are lost, and the log reports it. end
// sends the remaining spans.
func openTracing(ctx context.Context, logger *slog.Logger) (tracer trace.Tracer, end func() error, err error) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { logger.Warn("tracing failed: spans may be lost", "error", err) }))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("FENCELOCK_TRACING=otlp: %w; see the OTEL_EXPORTER_OTLP_… variables", err)
	}
	described, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "fencelock"), attribute.String("service.version", version.String())),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		return nil, nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(described))
	return provider.Tracer("github.com/fencelock/fencelock"), func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceTimeout)
		defer cancel()
		return provider.Shutdown(ctx)
	}, nil
}
