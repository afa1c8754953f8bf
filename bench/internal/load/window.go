// Package load drives a contender with any number of workers, each of which acquires and releases
// in a closed loop. It returns what one round measured.
package load

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/bench/internal/peer"
	"github.com/fencelock/fencelock/bench/internal/stats"
)

// Job is one round's work.
type Job struct {
	Workers       int // the number of workers; for a hot resource, the number that wait in the queue in addition to the holder
	Warm, Measure time.Duration
	// Claim names what a worker acquires in its n-th turn.
	Claim func(worker, n int) peer.Claim
	// Hot says that all workers want the same resource and wait for it. Hand-offs are timed, and
	// workers that still wait at the end of the round are cut off.
	Hot  bool
	Hold time.Duration // how long a hot resource is held
}

// Usage is processor time.
type Usage struct {
	Load    time.Duration // this process: the load generator and the libraries in it
	Service time.Duration // the lock service, if it is a process of its own
	Store   time.Duration // Redis, Postgres
	Foreign time.Duration // everything else on the machine
}

// Sub returns the time used since before.
func (u Usage) Sub(before Usage) Usage {
	return Usage{u.Load - before.Load, u.Service - before.Service, u.Store - before.Store, u.Foreign - before.Foreign}
}

// Outcome is what one round measured.
type Outcome struct {
	Seconds float64
	Pairs   int // completed acquire and release
	Busy    int // refused since another worker held it
	Failed  int
	Err     string        // the first failure
	Acquire stats.Latency // of granted acquires
	Pair    stats.Latency // acquire and release together, without the time between them
	Handoff stats.Latency // hot: from the response to a release to the response to the next grant
	// Turnover, of a hot resource, is the time from sending a release to the response to the next
	// grant.
	Turnover stats.Latency
	Held     stats.Latency // hot: how long holders kept the resource
	CPU      Usage
}

// Rate is pairs a second.
func (o Outcome) Rate() float64 { return float64(o.Pairs) / o.Seconds }

// PerPair is processor time divided by pairs, in microseconds.
func (o Outcome) PerPair(d time.Duration) float64 {
	return float64(d.Nanoseconds()) / 1000 / float64(max(o.Pairs, 1))
}

const (
	warming int32 = iota
	measuring
	stopped
)

// window tells the workers when to measure and when to stop.
type window struct {
	phase        atomic.Int32
	begun, ended chan struct{} // closed when measuring begins and ends
}

func newWindow() *window { return &window{begun: make(chan struct{}), ended: make(chan struct{})} }

func (w *window) measuring() bool { return w.phase.Load() == measuring }
func (w *window) stopped() bool   { return w.phase.Load() == stopped }

// run waits for the warm-up and the measured time. It returns the measured time and the processor
// time used in it.
func (w *window) run(ctx context.Context, job Job, meter func() Usage) (seconds float64, used Usage, err error) {
	defer w.phase.Store(stopped)
	if err := sleep(ctx, job.Warm); err != nil {
		return 0, Usage{}, err
	}
	before := meter()
	begin := time.Now()
	w.phase.Store(measuring)
	close(w.begun)
	err = sleep(ctx, job.Measure)
	w.phase.Store(stopped)
	close(w.ended)
	seconds = time.Since(begin).Seconds()
	return seconds, meter().Sub(before), err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// record is what one worker saw while measuring. Only the worker uses it until the run is over.
type record struct {
	w               *window
	acquires, pairs []time.Duration
	handoffs, held  []time.Duration
	turnovers       []time.Duration
	busy, failed    int
	err             error
}

// turn is one acquire and release.
type turn struct {
	begin, acquired, releasing, released time.Time
}

func (r *record) turned(t turn) {
	if !r.w.measuring() {
		return
	}
	acquire := t.acquired.Sub(t.begin)
	r.acquires = append(r.acquires, acquire)
	r.pairs = append(r.pairs, acquire+t.released.Sub(t.releasing))
}

func (r *record) refused() {
	if r.w.measuring() {
		r.busy++
	}
}

// failure counts an error while measuring. It keeps the first error even outside the measured
// time, because that error explains a run without results.
func (r *record) failure(err error) {
	if r.w.measuring() {
		r.failed++
	}
	if r.err == nil {
		r.err = err
	}
}

// sum adds up the records of all workers.
func sum(records []*record) Outcome {
	var o Outcome
	var all record
	for _, r := range records {
		all.acquires = append(all.acquires, r.acquires...)
		all.pairs = append(all.pairs, r.pairs...)
		all.handoffs = append(all.handoffs, r.handoffs...)
		all.turnovers = append(all.turnovers, r.turnovers...)
		all.held = append(all.held, r.held...)
		o.Busy += r.busy
		o.Failed += r.failed
		if o.Err == "" && r.err != nil {
			o.Err = r.err.Error()
		}
	}
	o.Pairs = len(all.pairs)
	o.Acquire, o.Pair = stats.NewLatency(all.acquires), stats.NewLatency(all.pairs)
	o.Handoff, o.Held = stats.NewLatency(all.handoffs), stats.NewLatency(all.held)
	o.Turnover = stats.NewLatency(all.turnovers)
	return o
}
