package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/version"
)

// refusalTimeout bounds reading the guard's count for one scrape.
const refusalTimeout = time.Second

// countingGuard is a guard that knows what it has refused in the application's own tables.
type countingGuard interface {
	Refused(ctx context.Context) (int64, error)
}

// guardRefusals adds what the guard has refused in the application's own tables to
// the metric of the guarded records. While the database does not answer, it adds nothing.
type guardRefusals struct {
	guard countingGuard
	desc  *prometheus.Desc
}

func newGuardRefusals(guard countingGuard) *guardRefusals {
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

// buildInfo names the version that runs.
func buildInfo() prometheus.Collector {
	id, date := version.Commit()
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "fencelock_build_info",
		Help:        "1, with the version, its commit and the commit's date as labels; empty where the build does not know them.",
		ConstLabels: prometheus.Labels{"version": version.String(), "commit": id, "date": date},
	}, func() float64 { return 1 })
}
