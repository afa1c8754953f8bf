package main

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/storage/pgguard"
)

// refusalTimeout bounds reading the guard's count for one scrape.
const refusalTimeout = time.Second

// guardRefusals adds what the guard has refused in the application's own tables to
// the metric of the guarded records. While Postgres does not answer, it adds nothing.
type guardRefusals struct {
	guard *pgguard.Guard
	desc  *prometheus.Desc
}

func newGuardRefusals(guard *pgguard.Guard) *guardRefusals {
	return &guardRefusals{guard: guard, desc: prometheus.NewDesc("fencelock_stale_writes_refused_total",
		"Guarded writes and claims that were refused because a larger token had been seen.", nil, prometheus.Labels{"operation": "table"})}
}

// Describe describes nothing, since the API has described the metric already.
func (r *guardRefusals) Describe(chan<- *prometheus.Desc) {}

func (r *guardRefusals) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), refusalTimeout)
	defer cancel()
	if refused, err := r.guard.Refused(ctx); err == nil {
		metrics <- prometheus.MustNewConstMetric(r.desc, prometheus.CounterValue, float64(refused))
	}
}
