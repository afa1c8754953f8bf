// Command go is the conformance kit's driver of the Go client; with the argument batches
// each call that does not wait is a batch.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/client"
)

// order is also a set-up, which has the servers.
type order struct {
	Servers     string `json:"servers"`
	TimeoutMS   int64  `json:"timeout_ms"`
	PatienceMS  int64  `json:"patience_ms"`
	Do          string `json:"do"`
	Resource    string `json:"resource"`
	TTLMS       int64  `json:"ttl_ms"`
	WaitMS      int64  `json:"wait_ms"`
	WorkMS      int64  `json:"work_ms"`
	CancelAfter int64  `json:"cancel_after_ms"`
}

type line struct {
	Event      string `json:"event,omitempty"`
	Result     string `json:"result,omitempty"`
	Token      int64  `json:"token,omitempty"`
	ValidityMS int64  `json:"validity_ms,omitempty"`
	Message    string `json:"message,omitempty"`
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func say(l line) {
	raw, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(raw))
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var d *driver
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return err
		}
		if o.Servers == "" {
			say(d.obey(context.Background(), o))
			continue
		}
		locks, err := newClient(o)
		if err != nil {
			return err
		}
		d = &driver{locks: locks}
		say(line{Result: "ready"})
	}
	return lines.Err()
}

func newClient(setup order) (*client.Client, error) {
	opts := []client.Option{client.WithTimeout(ms(setup.TimeoutMS)), client.WithPatience(ms(setup.PatienceMS))}
	if slices.Contains(os.Args, "batches") {
		opts = append(opts, client.WithBatchAfter(0))
	}
	return client.New(strings.Split(setup.Servers, ","), opts...)
}

type driver struct {
	locks *client.Client
	lease *client.Lease
}

func (d *driver) obey(ctx context.Context, o order) line {
	switch o.Do {
	case "acquire":
		if o.CancelAfter > 0 {
			var cancel func()
			ctx, cancel = context.WithTimeout(ctx, ms(o.CancelAfter))
			defer cancel()
		}
		lease, err := d.locks.Acquire(ctx, o.Resource, client.TTL(ms(o.TTLMS)), client.Wait(ms(o.WaitMS)))
		if err != nil {
			return failure(err)
		}
		d.lease = lease
		return line{Result: "acquired", Token: int64(lease.Token()), ValidityMS: lease.Validity().Milliseconds()}
	case "release":
		if err := d.lease.Release(ctx); err != nil {
			return failure(err)
		}
		return line{Result: "released"}
	case "work":
		return d.work(ctx, o)
	case "inside":
		return d.inside(ctx, o)
	case "beside":
		return d.beside(ctx, o)
	case "close":
		if err := d.locks.Close(ctx); err != nil {
			return failure(err)
		}
		return line{Result: "closed"}
	case "pause":
		time.Sleep(ms(o.WorkMS))
		return line{Result: "paused"}
	default: // a Go process does not fork
		return line{Result: "unsupported"}
	}
}

func (d *driver) work(ctx context.Context, o order) line {
	err := d.locks.Do(ctx, o.Resource, func(ctx context.Context, _ *client.Lease) error {
		say(line{Event: "began"})
		select {
		case <-ctx.Done():
			say(line{Event: "notified"})
		case <-time.After(ms(o.WorkMS)):
		}
		say(line{Event: "ended"})
		return nil
	}, client.TTL(ms(o.TTLMS)), client.Wait(ms(o.WaitMS)))
	if err != nil {
		return failure(err)
	}
	return line{Result: "worked"}
}

// inside takes what it holds again, and another resource with it.
func (d *driver) inside(ctx context.Context, o order) (got line) {
	err := d.locks.Do(ctx, o.Resource, func(ctx context.Context, _ *client.Lease) error {
		lease, err := d.locks.AcquireAll(ctx, []string{o.Resource, "another"}, client.Wait(ms(o.WaitMS)))
		if err != nil {
			got = failure(err)
			return nil
		}
		got = line{Result: "acquired", Token: int64(lease.Parts()[0].Token)}
		return nil
	}, client.TTL(ms(o.TTLMS)))
	if err != nil {
		return failure(err)
	}
	return got
}

// beside has a goroutine of the work take what the work holds.
func (d *driver) beside(ctx context.Context, o order) line {
	got := make(chan line, 1)
	err := d.locks.Do(ctx, o.Resource, func(ctx context.Context, outer *client.Lease) error {
		go func() {
			said := line{Result: "joined"}
			err := d.locks.Do(ctx, o.Resource, func(_ context.Context, l *client.Lease) error {
				if l != outer {
					said = line{Result: "acquired", Token: int64(l.Token())}
				}
				return nil
			}, client.Wait(ms(o.WaitMS)))
			if err != nil {
				said = failure(err)
			}
			got <- said
		}()
		said := <-got
		got <- said
		return nil
	}, client.TTL(ms(o.TTLMS)))
	if err != nil {
		return failure(err)
	}
	return <-got
}

func failure(err error) line {
	name := "refused"
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		name = "cancelled"
	case errors.Is(err, client.ErrHeld):
		name = "held"
	case errors.Is(err, client.ErrLeaseLost):
		name = "lost"
	case errors.Is(err, client.ErrDenied):
		name = "denied"
	case errors.Is(err, client.ErrUnavailable):
		name = "unavailable"
	}
	return line{Result: name, Message: err.Error()}
}
