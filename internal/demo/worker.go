package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencing"
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
	Work      time.Duration `json:"work"`       // the time between its check and its write
	RetryWork time.Duration `json:"retry_work"` // the same time after a refusal
}

// RunWorker is the whole program of a worker. It makes one deposit under the lock, and writes its events to
// out as lines of JSON.
//
// It is as careful as a worker can be without storage that checks tokens: it reads and writes only under
// the lock, and checks that its lease is still valid right before it writes.
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
		if !ok || !errors.Is(err, fencing.ErrStaleToken) {
			return errors.Join(err, w.failed)
		}
		w.report(Event{Kind: Refused, Token: int64(refusal.Presented), Highest: int64(refusal.HighestToken)})
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
	// Any check before this point may be outdated after it.
	amount += told().Deposits[w.Who]
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

// acquire acquires the lock, and waits in the queue if the lock is held. A try without a wait has one
// second, which may be too short for a server that has just started. It is repeated then.
func (w *worker) acquire(ctx context.Context) (*client.Lease, error) {
	lease, err := w.locks.TryAcquire(ctx, w.Resource, client.TTL(w.TTL))
	held, ok := errors.AsType[*client.ProblemError](err)
	isHeld := ok && errors.Is(err, client.ErrHeld)
	if isHeld {
		w.report(Event{Kind: Held, Left: held.Remaining})
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

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
