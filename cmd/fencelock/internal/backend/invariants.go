package backend

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/fencelock/fencelock/lockcore"
)

// invariants counts violated invariants.
type invariants struct {
	broken map[lockcore.Invariant]prometheus.Counter
	logger *slog.Logger

	mu     sync.Mutex
	logged map[lockcore.Invariant]time.Time
}

func newInvariants(auto promauto.Factory, logger *slog.Logger) *invariants {
	count := auto.NewCounterVec(prometheus.CounterOpts{
		Name: "fencelock_invariant_violations_total", Help: "Broken invariants that this server noticed: always 0 unless fencelock has a defect or data of a node were changed by hand.",
	}, []string{"invariant"})
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	v := &invariants{broken: make(map[lockcore.Invariant]prometheus.Counter), logger: logger, logged: make(map[lockcore.Invariant]time.Time)}
	for _, one := range lockcore.Invariants() {
		v.broken[one] = count.WithLabelValues(string(one)) // so that the series exists with 0 first
	}
	return v
}

// violated counts a violated invariant, and logs each kind at most once a minute.
func (v *invariants) violated(broken lockcore.Invariant, what ...any) {
	v.broken[broken].Inc()
	if v.isNews(broken) {
		v.logger.Error("an invariant is broken: two leases may be taken for valid; unless data of a node were changed by hand, this is a defect of fencelock: stop what must not run twice, keep the logs, and report it",
			append([]any{"invariant", string(broken)}, what...)...)
	}
}

func (v *invariants) isNews(broken lockcore.Invariant) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.logged[broken]) < time.Minute {
		return false
	}
	v.logged[broken] = time.Now()
	return true
}
