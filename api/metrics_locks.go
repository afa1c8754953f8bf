package api

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// otherPrefix labels the resources that match none of Options.MetricsPrefixes.
const otherPrefix = "other"

// The outcome of a call, as a label. All series exist from the start, so that a rate over them begins at 0.
const (
	outcomeGranted    = "granted"
	outcomeExisting   = "existing"
	outcomeReleased   = "released"
	outcomeTimeout    = "wait_timeout"
	outcomePolled     = "polled"
	outcomeHeld       = "held"
	outcomeNotHeld    = "not_held"
	outcomeNoQuorum   = "no_quorum"
	outcomeStopping   = "stopping"
	outcomeGone       = "gone"
	outcomeInvalid    = "invalid"
	outcomeUnexpected = "error"
)

// refusals maps errors to outcomes. The first match counts: if the caller hung up, that is the outcome,
// even if it also caused a missing quorum.
var refusals = []struct {
	outcome string
	err     error
}{
	{outcomeGone, context.Canceled},
	{outcomeGone, context.DeadlineExceeded},
	{outcomeTimeout, lockcore.ErrWaitTimeout},
	{outcomeHeld, lockcore.ErrHeld},
	{outcomeNotHeld, lockcore.ErrNotHeld},
	{"max_hold", lockcore.ErrMaxHold},
	{outcomeNoQuorum, lockcore.ErrNoQuorum},
	{"too_many_waiters", lockcore.ErrTooManyWaiters},
	{outcomeStopping, lockcore.ErrStopping},
	{"idempotency_mismatch", lockcore.ErrIdempotencyMismatch},
	{"tokens_exhausted", lockcore.ErrTokensExhausted},
}

var (
	acquireOutcomes = []string{
		outcomeGranted, outcomeExisting, outcomeHeld, outcomeTimeout, outcomePolled, outcomeNoQuorum, "too_many_waiters", outcomeStopping,
		outcomeGone, "idempotency_mismatch", "tokens_exhausted", outcomeInvalid, outcomeUnexpected,
	}
	extendOutcomes  = []string{outcomeGranted, outcomeNotHeld, "max_hold", outcomeNoQuorum, outcomeGone, outcomeInvalid, outcomeUnexpected}
	releaseOutcomes = []string{outcomeReleased, outcomeNotHeld, outcomeNoQuorum, outcomeGone, outcomeInvalid, outcomeUnexpected}
)

// outcomeOf names the outcome of a call.
func outcomeOf(err error) string {
	if err == nil {
		return outcomeGranted
	}
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return r.outcome
		}
	}
	if asField(err) != nil {
		return outcomeInvalid
	}
	return outcomeUnexpected
}

// lockMetrics are the metrics of the lock service itself. The series that requests count in are looked up
// once, at the start.
type lockMetrics struct {
	prefixes   []string // longest first; the last group is for all other resources
	groups     []groupMetrics
	extensions outcomes
	releases   outcomes
	breaks     prometheus.Counter
	lost       map[lostBy]prometheus.Counter
	unseen     prometheus.Counter
	stale      map[fencing.AttemptKind]prometheus.Counter
}

// groupMetrics are the metrics of the resources under one prefix.
type groupMetrics struct {
	wait, hold prometheus.Observer
	acquired   outcomes
}

// outcomes has the counter for each outcome of a call.
type outcomes map[string]prometheus.Counter

func (o outcomes) count(outcome string) {
	counter, known := o[outcome]
	if !known {
		counter = o[outcomeUnexpected]
	}
	counter.Inc()
}

// lostBy is how this server noticed that a lease had ended before its release.
type lostBy string

const (
	lostByExpiry  lostBy = "expiry"  // its TTL passed without a release
	lostByExtend  lostBy = "extend"  // its extend came too late
	lostByRelease lostBy = "release" // its release found that it had ended
)

// longTimes returns buckets for durations between a millisecond and an hour.
func longTimes() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}
}

func newLockMetrics(registry prometheus.Registerer, prefixes []string, held, placesKept func() int) *lockMetrics {
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fencelock_waiters_kept",
		Help: "Places in queues that are kept for requests under an Idempotency-Key that ended at this server without a lease.",
	}, func() float64 { return float64(placesKept()) }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fencelock_leases_held",
		Help: "Leases granted or last extended through this server that were neither released nor have expired.",
	}, func() float64 { return float64(held()) }))
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		registry.MustRegister(v)
		return v
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: longTimes()}, []string{"prefix"})
		registry.MustRegister(v)
		return v
	}
	wait := histogram("fencelock_wait_seconds", "Time from an acquire to its grant, or to the end of a wait without a grant.")
	hold := histogram("fencelock_hold_seconds", "Time from a lease's grant to its release through this server.")
	acquisitions := counter("fencelock_acquisitions_total", "Completed acquires, by outcome.", "outcome", "prefix")
	extensions := counter("fencelock_extensions_total", "Completed extends, by outcome.", "outcome")
	releases := counter("fencelock_releases_total", "Completed releases, by outcome.", "outcome")
	lost := counter("fencelock_leases_lost_total", "Leases that ended without a release, by how this server noticed it.", "found")
	stale := counter("fencelock_stale_writes_refused_total", "Guarded writes and claims that were refused because a larger token had been seen.", "operation")
	m := &lockMetrics{
		prefixes:   slices.Clone(prefixes),
		extensions: resolved(extensions, extendOutcomes),
		releases:   resolved(releases, releaseOutcomes),
		breaks:     counter("fencelock_breaks_total", "Locks broken by an administrator.").WithLabelValues(),
		unseen:     counter("fencelock_leases_unseen_total", "Leases granted or extended here whose end this server did not see: released through another server, broken, or expired.").WithLabelValues(),
		lost:       resolved(lost, []lostBy{lostByExpiry, lostByExtend, lostByRelease}),
		stale:      resolved(stale, []fencing.AttemptKind{fencing.KindWrite, fencing.KindClaim}),
	}
	slices.SortFunc(m.prefixes, func(a, b string) int { return len(b) - len(a) })
	for _, label := range append(slices.Clone(m.prefixes), restLabel(prefixes)) {
		m.groups = append(m.groups, groupMetrics{
			wait: wait.WithLabelValues(label), hold: hold.WithLabelValues(label),
			acquired: resolved(acquisitions.MustCurryWith(prometheus.Labels{"prefix": label}), acquireOutcomes),
		})
	}
	return m
}

// restLabel returns the prefix label for resources without a prefix: "" if no prefixes are configured.
func restLabel(prefixes []string) string {
	if len(prefixes) == 0 {
		return ""
	}
	return otherPrefix
}

func resolved[K ~string](v *prometheus.CounterVec, values []K) map[K]prometheus.Counter {
	found := make(map[K]prometheus.Counter, len(values))
	for _, value := range values {
		found[value] = v.WithLabelValues(string(value))
	}
	return found
}

// group returns the metrics of the resource's prefix.
func (m *lockMetrics) group(resource string) *groupMetrics {
	for i, prefix := range m.prefixes {
		if strings.HasPrefix(resource, prefix) {
			return &m.groups[i]
		}
	}
	return &m.groups[len(m.prefixes)]
}

// acquired counts an acquire with its outcome and duration.
func (m *lockMetrics) acquired(req *lockcore.Request, outcome string, took time.Duration) {
	resource := req.Resource
	if resource == "" && len(req.Resources) > 0 {
		resource = req.Resources[0]
	}
	g := m.group(resource)
	g.acquired.count(outcome)
	if outcome == outcomeGranted || outcome == outcomeExisting || req.Wait > 0 && waited(outcome) {
		g.wait.Observe(took.Seconds())
	}
}

// waited reports whether a refusal ended a wait, instead of coming at once.
func waited(outcome string) bool {
	return outcome == outcomeTimeout || outcome == outcomePolled || outcome == outcomeGone || outcome == outcomeNoQuorum || outcome == outcomeStopping
}

// held records how long a lease was held that has been released now.
func (m *lockMetrics) held(resource string, held time.Duration) {
	m.group(resource).hold.Observe(held.Seconds())
}
