package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fencelock/fencelock/client"
)

// maxWait is how long a worker waits in the queue.
const maxWait = 10 * time.Minute

// WorkerConfig is a worker's input, as JSON on its standard input.
type WorkerConfig struct {
	Who       Actor         `json:"who"`
	Server    string        `json:"server"`
	Resource  string        `json:"resource"`
	Account   account       `json:"account"`
	TTL       time.Duration `json:"ttl"`
	Work      time.Duration `json:"work"`       // between its check and its write
	RetryWork time.Duration `json:"retry_work"` // the same, after a refusal
}

// RunWorker is a worker's whole program: it deposits once, under the lock, and
// writes what it does to out as lines of JSON.
//
// It is as careful as a worker can be whose storage does not check tokens: it
// reads and writes under the lock only, and checks that its lease is still valid
// right before it writes.
func RunWorker(ctx context.Context, in io.Reader, out io.Writer) error {
	w := &worker{out: json.NewEncoder(out)}
	err := json.NewDecoder(in).Decode(&w.WorkerConfig)
	if err != nil {
		return fmt.Errorf("the worker cannot read its configuration from standard input: %w", err)
	}
	if w.locks, err = client.New([]string{w.Server}, client.WithHolder("worker-"+string(w.Who))); err != nil {
		return err
	}
	for work := w.Work; ; work = w.RetryWork {
		err := w.deposit(ctx, work)
		refusal, ok := errors.AsType[*client.ProblemError](err)
		if !ok || refusal.StaleDetails == nil {
			return errors.Join(err, w.failed)
		}
		w.report(Event{Kind: Refused, Token: refusal.Presented, Highest: refusal.HighestToken})
	}
}

type worker struct {
	WorkerConfig

	locks  *client.Client
	out    *json.Encoder
	failed error // the first failure to report
}

// deposit is the critical section.
func (w *worker) deposit(ctx context.Context, work time.Duration) error {
	lease, err := w.acquire(ctx)
	if err != nil {
		return err
	}
	token, shown := int64(lease.Token()), int64(0)
	if w.Account.guarded() {
		shown = token
	}
	amount, err := w.Account.read(ctx, token)
	if err != nil {
		return err
	}
	left := lease.Validity()
	if left <= 0 {
		return errors.New("the lease expired before the write")
	}
	w.report(Event{Kind: Read, Balance: amount, Token: shown})
	w.report(Event{Kind: Checked, Left: left})
	// Whatever is checked before this point may be wrong after it.
	amount += deposits[w.Who]
	if err := errors.Join(w.failed, pause(ctx, work)); err != nil {
		return err
	}
	if err := w.Account.write(ctx, token, amount); err != nil {
		return err
	}
	w.report(Event{Kind: Wrote, Balance: amount, Token: shown})
	err = lease.Release(ctx)
	if errors.Is(err, client.ErrLeaseLost) {
		w.report(Event{Kind: TooLate})
		return nil
	}
	w.report(Event{Kind: Released})
	return err
}

// acquire takes the lock, and waits for it in the queue if it is held. A try without a wait has
// a second, which may be too short for a server that has just started: it is asked again.
func (w *worker) acquire(ctx context.Context) (*client.Lease, error) {
	lease, err := w.locks.TryAcquire(ctx, w.Resource, client.TTL(w.TTL))
	held, ok := errors.AsType[*client.ProblemError](err)
	isHeld := ok && held.HeldDetails != nil
	if isHeld {
		w.report(Event{Kind: Held, Left: time.Duration(held.RemainingMS) * time.Millisecond})
	}
	if isHeld || errors.Is(err, client.ErrUnavailable) {
		lease, err = w.locks.Acquire(ctx, w.Resource, client.TTL(w.TTL), client.Wait(maxWait))
	}
	if err == nil {
		w.report(Event{Kind: Acquired, Token: int64(lease.Token()), Left: lease.Validity()})
	}
	return lease, err
}

func (w *worker) report(e Event) {
	e.Who, e.Time = w.Who, time.Now()
	w.failed = errors.Join(w.failed, w.out.Encode(e))
}

// pause waits for a while, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
