package load

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/bench/internal/peer"
)

// program is a crew that runs in its own process.
type program struct {
	w       *window
	record  *record
	started *peer.Started
}

func newProgram(ctx context.Context, p *peer.Program, job Job, records []*record) (*program, error) {
	resources := make([]string, job.Workers)
	for i := range resources {
		resources[i] = job.Claim(i, 0).Resource
	}
	started, err := p.Start(ctx, resources, job.Claim(0, 0).TTL)
	if err != nil {
		return nil, err
	}
	return &program{w: records[0].w, record: records[0], started: started}, nil
}

func (p *program) work(ctx context.Context) error {
	if !after(ctx, p.w.begun) {
		return ctx.Err()
	}
	if err := p.started.Measure(); err != nil {
		return err
	}
	if !after(ctx, p.w.ended) {
		return ctx.Err()
	}
	tally, err := p.started.Finish()
	p.record.take(tally)
	return err
}

// after waits for a phase. It returns false if ctx ends first.
func after(ctx context.Context, phase <-chan struct{}) bool {
	select {
	case <-phase:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *program) dismiss(context.Context) error { return p.started.Close() }

// take records the results of a program.
func (r *record) take(t peer.Tally) {
	r.acquires, r.pairs = durations(t.Acquires), durations(t.Pairs)
	r.busy, r.failed = t.Busy, t.Failed
	if t.Error != "" {
		r.err = errors.New(t.Error)
	}
}

func durations(micros []int64) []time.Duration {
	all := make([]time.Duration, len(micros))
	for i, n := range micros {
		all[i] = time.Duration(n) * time.Microsecond
	}
	return all
}
