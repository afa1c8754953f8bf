package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fencelock/fencelock/bench/internal/peer"
)

const (
	// grace is how long a turn may continue after the round; then its context is cancelled.
	grace = 3 * time.Second
	// stopWithin bounds how long the workers may take to stop after that.
	stopWithin = 15 * time.Second
	// openAtOnce bounds how many sessions are opened at the same time.
	openAtOnce = 32
)

// Run drives a peer through one round. meter reads the processor time used so far.
func Run(ctx context.Context, p peer.Peer, job Job, meter func() Usage) (Outcome, error) {
	w := newWindow()
	records := make([]*record, job.staff())
	for i := range records {
		records[i] = &record{w: w}
	}
	crew, err := assemble(ctx, p, job, records)
	if err != nil {
		return Outcome{}, fmt.Errorf("%s: %w", p.Name(), err)
	}
	o, err := direct(ctx, w, crew, job, records, meter)
	if err != nil {
		return o, fmt.Errorf("%s: %w", p.Name(), err)
	}
	return o, nil
}

// staff returns the number of workers that the job needs.
func (j Job) staff() int {
	if j.Hot {
		return j.Workers + spare
	}
	return j.Workers
}

// crew is a set of workers that acquire and release.
type crew interface {
	// work returns when the window has stopped and all work is done.
	work(ctx context.Context) error
	dismiss(ctx context.Context) error
}

func assemble(ctx context.Context, p peer.Peer, job Job, records []*record) (crew, error) {
	if whole, ok := p.(*peer.Program); ok {
		return newProgram(ctx, whole, job, records)
	}
	if remote, ok := p.(peer.Remote); ok && !job.Hot {
		return newFlows(ctx, remote, job, records)
	}
	return newSessions(ctx, p, job, records)
}

// direct runs the crew for as long as the job says, and returns the outcome.
func direct(ctx context.Context, w *window, c crew, job Job, records []*record, meter func() Usage) (Outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timed, fail := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := c.work(ctx)
		if err != nil {
			fail(err) // without workers there is nothing left to measure
		}
		ended <- err
	}()
	seconds, used, err := w.run(timed, job, meter)
	fail(nil)
	if job.Hot {
		cancel()
	}
	cut, awaited := await(ended, cancel)
	err = errors.Join(err, awaited, c.dismiss(context.WithoutCancel(ctx)))
	if err != nil {
		return Outcome{}, err
	}
	o := sum(records)
	o.Seconds, o.CPU = seconds, used
	if cut && !job.Hot {
		o.Failed++
		o.Err = fmt.Sprintf("a turn had not ended %s after the round and was cut off", grace)
	}
	return o, nil
}

// await waits until the crew has ended, and cancels the turns that take too long.
func await(ended <-chan error, cancel context.CancelFunc) (cut bool, err error) {
	select {
	case err := <-ended:
		return false, err
	case <-time.After(grace):
		cancel()
	}
	select {
	case err := <-ended:
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		return true, err
	case <-time.After(stopWithin):
		return true, fmt.Errorf("workers did not end within %s", stopWithin)
	}
}

// each calls do for every index, with a few calls at the same time.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(openAtOnce)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}
