package backend

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/fencelock/fencelock/lockcore/redlock/settings"
)

// traceVotes adds the nodes' votes and the decision to the span in the request's context, as events.
func traceVotes(ctx context.Context, a settings.Attempt) {
	span := trace.SpanFromContext(ctx)
	for _, vote := range a.Votes {
		attributes := []attribute.KeyValue{attribute.String("fencelock.node", vote.Node), attribute.String("fencelock.answer", vote.Reason)}
		if vote.Grant.Valid() {
			attributes = append(attributes, attribute.Int64("fencelock.grant", int64(vote.Grant)))
		}
		at := []trace.EventOption{trace.WithAttributes(attributes...)}
		if !vote.At.IsZero() {
			at = append(at, trace.WithTimestamp(vote.At))
		}
		span.AddEvent("vote", at...)
	}
	span.AddEvent("decided", trace.WithAttributes(attribute.String("fencelock.verdict", a.Verdict.String())))
}
