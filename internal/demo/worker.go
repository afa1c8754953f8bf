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

// waitMost is how long a worker waits in the queue.
const waitMost = 10 * time.Minute

// WorkerConfig is what a worker is told, as JSON on its standard input: a
// database's password has no place among a process's arguments.
type WorkerConfig struct {
	Who       Actor         `json:"who"`
	Server    string        `json:"server"`
	Resource  string        `json:"resource"`
	Account   AccountConfig `json:"account"`
	TTL       time.Duration `json:"ttl"`
	Work      time.Duration `json:"work"`       // what it has to do between its check and its write
	RetryWork time.Duration `json:"retry_work"` // the same, when it begins again
}

// RunWorker is a worker's whole program: it deposits once, under the lock,
// and tells what it does as lines of JSON on out.
//
// It is as careful as a worker can be that does not let its storage check
// tokens: it reads and writes under the lock only, and looks whether its
// lease is still good right before it writes.
func RunWorker(ctx context.Context, in io.Reader, out io.Writer) error {
	w := &worker{out: json.NewEncoder(out)}
	err := json.NewDecoder(in).Decode(&w.WorkerConfig)
	if err != nil {
		return fmt.Errorf("a worker is told what to do on its standard input: %w", err)
	}
	if w.locks, err = client.New(w.Server, client.WithHolder("worker-"+string(w.Who))); err != nil {
		return err
	}
	w.account = w.Account.open(w.Server)
	return w.run(ctx)
}

type worker struct {
	WorkerConfig

	locks   *client.Client
	account account
	out     *json.Encoder
}

// run deposits, and begins again for as long as its token turns out stale.
func (w *worker) run(ctx context.Context) error {
	for work := w.Work; ; work = w.RetryWork {
		err := w.deposit(ctx, work)
		late, isStale := errors.AsType[*staleError](err)
		if !isStale {
			return err
		}
		if err := w.tell(Event{Kind: Refused, Token: late.presented, Highest: late.highest}); err != nil {
			return err
		}
	}
}

// deposit is the critical section.
func (w *worker) deposit(ctx context.Context, work time.Duration) error {
	lease, err := w.acquire(ctx)
	if err != nil {
		return err
	}
	token, shown := int64(lease.Token()), int64(0)
	if w.Account.Resource != "" {
		shown = token
	}
	amount, err := w.account.read(ctx, token)
	if err != nil {
		return err
	}
	left := lease.Validity()
	if left <= 0 {
		return errors.New("the lease ended before there was anything to write")
	}
	if err := errors.Join(w.tell(Event{Kind: Read, Balance: amount, Token: shown}), w.tell(Event{Kind: Checked, Left: left})); err != nil {
		return err
	}
	// Whatever is checked before this point may be wrong after it.
	if err := pause(ctx, work); err != nil {
		return err
	}
	amount += depositOf(w.Who)
	if err := w.account.write(ctx, token, amount); err != nil {
		return err
	}
	if err := w.tell(Event{Kind: Wrote, Balance: amount, Token: shown}); err != nil {
		return err
	}
	err = lease.Release(ctx)
	if errors.Is(err, client.ErrLeaseLost) {
		return w.tell(Event{Kind: Lost})
	}
	return errors.Join(err, w.tell(Event{Kind: Released}))
}

// acquire takes the lock, after waiting for it in the queue if it must.
func (w *worker) acquire(ctx context.Context) (*client.Lease, error) {
	request := client.Request{TTL: w.TTL}
	lease, err := w.locks.Acquire(ctx, w.Resource, request)
	if held, ok := errors.AsType[*client.ProblemError](err); ok && held.HeldDetails != nil {
		if err := w.tell(Event{Kind: Held, Left: time.Duration(held.RemainingMS) * time.Millisecond}); err != nil {
			return nil, err
		}
		request.Wait = waitMost
		lease, err = w.locks.Acquire(ctx, w.Resource, request)
	}
	if err != nil {
		return nil, err
	}
	return lease, w.tell(Event{Kind: Acquired, Token: int64(lease.Token()), Left: lease.Validity()})
}

func (w *worker) tell(e Event) error {
	e.Who, e.Time = w.Who, time.Now()
	return w.out.Encode(e)
}

// pause waits for a while, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
