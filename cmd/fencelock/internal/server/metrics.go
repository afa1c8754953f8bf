package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/version"
)

// refusalTimeout bounds how long a scrape waits for the guard's count.
const refusalTimeout = time.Second

// countingGuard is a guard that counts its refusals in the application's own tables.
type countingGuard interface {
	Refused(ctx context.Context) (int64, error)
}

// guardRefusals adds the guard's refusals in the application's own tables to the metric of the guarded
// records. While the database does not respond, it adds nothing.
type guardRefusals struct {
	guard countingGuard
	desc  *prometheus.Desc
}

func newGuardRefusals(guard countingGuard) *guardRefusals {
	return &guardRefusals{guard: guard, desc: prometheus.NewDesc("fencelock_stale_writes_refused_total",
		"Guarded writes and claims that were refused because a larger token had been seen.", nil, prometheus.Labels{"operation": "table"})}
}

// Describe does nothing, because the API describes the metric.
func (r *guardRefusals) Describe(chan<- *prometheus.Desc) {}

func (r *guardRefusals) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), refusalTimeout)
	defer cancel()
	if refused, err := r.guard.Refused(ctx); err == nil {
		metrics <- prometheus.MustNewConstMetric(r.desc, prometheus.CounterValue, float64(refused))
	}
}

// buildInfo reports the running version.
func buildInfo() prometheus.Collector {
	id, date := version.Commit()
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "fencelock_build_info",
		Help:        "1, with the version, its commit and the commit's date as labels; empty where the build does not know them.",
		ConstLabels: prometheus.Labels{"version": version.String(), "commit": id, "date": date},
	}, func() float64 { return 1 })
}
