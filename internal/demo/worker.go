package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// waitMost is how long a worker stands in line.
const waitMost = 10 * time.Minute

// WorkerConfig is what a worker is told, as JSON on its standard input: a
// database's password has no place among a process's arguments.
type WorkerConfig struct {
	Who       Actor         `json:"who"`
	Server    string        `json:"server"`
	Resource  string        `json:"resource"`
	Account   AccountConfig `json:"account"`
	TTL       time.Duration `json:"ttl"`
	Deposit   int64         `json:"deposit"`
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
	var cfg WorkerConfig
	if err := json.NewDecoder(in).Decode(&cfg); err != nil {
		return fmt.Errorf("a worker is told what to do on its standard input: %w", err)
	}
	w := &worker{WorkerConfig: cfg, server: newServer(cfg.Server), out: json.NewEncoder(out)}
	var err error
	if w.account, err = cfg.Account.open(ctx, w.server); err != nil {
		return err
	}
	return errors.Join(w.run(ctx), w.account.Close(context.WithoutCancel(ctx)))
}

type worker struct {
	WorkerConfig

	server  *server
	account account
	out     *json.Encoder
}

// run deposits, and begins again for as long as its token turns out stale.
func (w *worker) run(ctx context.Context) error {
	work := w.Work
	for {
		err := w.deposit(ctx, work)
		late, isStale := errors.AsType[*staleError](err)
		if !isStale {
			return err
		}
		if err := w.tell(Event{Kind: Refused, Token: late.presented, Highest: late.highest}); err != nil {
			return err
		}
		work = w.RetryWork
	}
}

// deposit is the critical section.
func (w *worker) deposit(ctx context.Context, work time.Duration) error {
	lease, end, err := w.acquire(ctx)
	if err != nil {
		return err
	}
	amount, err := w.account.Read(ctx, lease.FencingToken)
	if err != nil {
		return err
	}
	if err := w.tell(Event{Kind: Read, Balance: amount, Token: w.shown(lease.FencingToken)}); err != nil {
		return err
	}
	if err := w.check(end); err != nil {
		return err
	}
	// Whatever is checked before this point may be wrong after it.
	if err := pause(ctx, work); err != nil {
		return err
	}
	amount += w.Deposit
	if err := w.account.Write(ctx, lease.FencingToken, amount); err != nil {
		return err
	}
	if err := w.tell(Event{Kind: Wrote, Balance: amount, Token: w.shown(lease.FencingToken)}); err != nil {
		return err
	}
	return w.release(ctx, lease.LeaseID)
}

// acquire takes the lock, after waiting in line for it if it must. The
// returned instant is the lease's end.
func (w *worker) acquire(ctx context.Context) (wire.Lease, time.Time, error) {
	lease, asked, err := w.server.acquire(ctx, w.Resource, w.holder(), w.TTL, 0)
	if held, ok := refused(err, http.StatusConflict); ok && held.HeldDetails != nil {
		lease, asked, err = w.wait(ctx, milliseconds(held.RemainingMS))
	}
	if err != nil {
		return wire.Lease{}, time.Time{}, err
	}
	// Validity counts from the question: how long the answer took is unknown.
	end := asked.Add(milliseconds(lease.ValidityMS))
	return lease, end, w.tell(Event{Kind: Acquired, Token: lease.FencingToken, Left: time.Until(end)})
}

// wait stands in line. The question is older than the lease then, so a second
// one asks what is left.
func (w *worker) wait(ctx context.Context, left time.Duration) (wire.Lease, time.Time, error) {
	if err := w.tell(Event{Kind: Held, Left: left}); err != nil {
		return wire.Lease{}, time.Time{}, err
	}
	lease, _, err := w.server.acquire(ctx, w.Resource, w.holder(), w.TTL, waitMost)
	if err != nil {
		return wire.Lease{}, time.Time{}, err
	}
	return w.server.lease(ctx, lease.LeaseID)
}

// check is the look at the lease that careful workers trust in.
func (w *worker) check(end time.Time) error {
	left := time.Until(end)
	if left <= 0 {
		return errors.New("the lease ended before there was anything to write")
	}
	return w.tell(Event{Kind: Checked, Left: left})
}

// release gives the lock back, and tells if it was lost before.
func (w *worker) release(ctx context.Context, leaseID string) error {
	err := w.server.release(ctx, leaseID)
	if _, lost := refused(err, http.StatusNotFound); lost {
		return w.tell(Event{Kind: Lost})
	}
	if err != nil {
		return err
	}
	return w.tell(Event{Kind: Released})
}

func (w *worker) tell(e Event) error {
	e.Who, e.Time = w.Who, time.Now()
	return w.out.Encode(e)
}

// shown is the token if the storage looks at it, else 0.
func (w *worker) shown(token int64) int64 {
	if w.account.ChecksTokens() {
		return token
	}
	return 0
}

func (w *worker) holder() string { return "worker-" + string(w.Who) }

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

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
