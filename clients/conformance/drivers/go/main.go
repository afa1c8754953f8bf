// Command go is the conformance kit's driver of the Go client. With the argument batches it sends each
// call that does not wait as a batch.
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
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/client"
)

// order is an order or a set-up; a set-up has Servers.
type order struct {
	Servers    string  `json:"servers"`
	TimeoutMS  int64   `json:"timeout_ms"`
	PatienceMS *int64  `json:"patience_ms"`
	Raises     []raise `json:"raises"`

	Do          string   `json:"do"`
	Resource    string   `json:"resource"`
	Resources   []string `json:"resources"`
	TTLMS       int64    `json:"ttl_ms"`
	WaitMS      int64    `json:"wait_ms"`
	WorkMS      int64    `json:"work_ms"`
	BusyMS      int64    `json:"busy_ms"`
	CancelAfter int64    `json:"cancel_after_ms"`
	DeadlineMS  int64    `json:"deadline_ms"`
	CloseAfter  int64    `json:"close_after_ms"`
	OnLost      bool     `json:"on_lost"`
	Slots       *int     `json:"slots"`
	MinHoldMS   int64    `json:"min_hold_ms"`
	MaxHoldMS   int64    `json:"max_hold_ms"`
	MarginMS    *int64   `json:"margin_ms"`
	Holder      string   `json:"holder"`
	Keep        int      `json:"keep"`
	Calls       int      `json:"calls"`
}

// raise says which calls of a callback raise.
type raise struct {
	Callback string `json:"callback"`
	From     int64  `json:"from"`
	Times    int64  `json:"times"`
}

type line struct {
	Event      string `json:"event,omitempty"`
	Result     string `json:"result,omitempty"`
	Token      int64  `json:"token,omitempty"`
	ValidityMS int64  `json:"validity_ms,omitempty"`
	Done       int64  `json:"done,omitempty"`
	Kept       int    `json:"kept,omitempty"`
	TimedOut   bool   `json:"timed_out,omitempty"`
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
		if errors.Is(err, errors.ErrUnsupported) {
			say(line{Result: "unsupported"})
			continue
		}
		if err != nil {
			return err
		}
		d = &driver{locks: locks}
		say(line{Result: "ready"})
	}
	return lines.Err()
}

func newClient(setup order) (*client.Client, error) {
	opts := []client.Option{client.WithTimeout(ms(setup.TimeoutMS)), client.WithPatience(ms(*setup.PatienceMS))}
	if slices.Contains(os.Args, "batches") {
		opts = append(opts, client.WithBatchAfter(0))
	}
	for _, r := range setup.Raises {
		if r.Callback != "credential" { // the other callbacks return no error, and a panic would end the program
			return nil, errors.ErrUnsupported
		}
		opts = append(opts, client.WithBearerTokenFunc(r.credential()))
	}
	return client.New(strings.Split(setup.Servers, ","), opts...)
}

var errRaised = errors.New("the callback raised")

func (r raise) credential() func(context.Context) (string, error) {
	var calls atomic.Int64
	return func(context.Context) (string, error) {
		if n := calls.Add(1); n >= r.From && (r.Times == 0 || n < r.From+r.Times) {
			return "", errRaised
		}
		return "a credential", nil
	}
}

type driver struct {
	locks *client.Client
	lease *client.Lease
}

func (d *driver) obey(ctx context.Context, o order) line {
	switch o.Do {
	case "acquire":
		ctx, cancel := o.cancelled(ctx)
		defer cancel()
		lease, err := d.locks.AcquireAll(ctx, o.resources(), o.options()...)
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
	case "work", "elect":
		if o.OnLost { // the Go client reports a loss by ending the context
			return line{Result: "unsupported"}
		}
		return d.work(ctx, o)
	case "burst":
		return d.burst(ctx, o)
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
	default: // a Go process cannot fork
		return line{Result: "unsupported"}
	}
}

func (o order) resources() []string {
	if o.Resources != nil {
		return o.Resources
	}
	return []string{o.Resource}
}

func (o order) options() client.AcquireOptions {
	opts := client.AcquireOptions{
		client.TTL(ms(o.TTLMS)), client.Wait(ms(o.WaitMS)), client.MinHold(ms(o.MinHoldMS)), client.MaxHold(ms(o.MaxHoldMS)), client.Holder(o.Holder),
	}
	if o.PatienceMS != nil {
		opts = append(opts, client.Patience(ms(*o.PatienceMS)))
	}
	if o.Slots != nil {
		opts = append(opts, client.Slots(*o.Slots))
	}
	return opts
}

// work works under a lease, or leads.
func (d *driver) work(ctx context.Context, o order) line {
	work, result := d.locks.Do, line{Result: "worked"}
	if o.Do == "elect" {
		work, result = d.locks.Elect, line{Result: "resigned"}
	}
	opts := []client.DoOption{o.options()}
	if o.MarginMS != nil {
		opts = append(opts, client.Margin(ms(*o.MarginMS)))
	}
	ctx, cancel := o.cancelled(ctx)
	defer cancel()
	var closing sync.WaitGroup
	if o.CloseAfter > 0 {
		closing.Go(func() { d.closeAfter(ctx, ms(o.CloseAfter)) })
	}
	err := work(ctx, o.Resource, func(ctx context.Context, _ *client.Lease) error {
		say(line{Event: "began"})
		defer say(line{Event: "ended"})
		if o.BusyMS > 0 {
			time.Sleep(ms(o.BusyMS))
			if ctx.Err() != nil {
				say(line{Event: "notified"})
			}
			return nil
		}
		select {
		case <-ctx.Done():
			say(line{Event: "notified"})
		case <-time.After(ms(o.WorkMS)):
		}
		return nil
	}, opts...)
	closing.Wait()
	if err != nil {
		return failure(err)
	}
	return result
}

func (o order) cancelled(ctx context.Context) (context.Context, context.CancelFunc) {
	if o.DeadlineMS > 0 {
		return context.WithTimeout(ctx, ms(o.DeadlineMS))
	}
	if o.CancelAfter > 0 {
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(ms(o.CancelAfter), cancel)
		return ctx, cancel
	}
	return ctx, func() {}
}

func (d *driver) closeAfter(ctx context.Context, after time.Duration) {
	time.Sleep(after)
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_ = d.locks.Close(ctx) // an error says that the time was over, which the kit measures itself
}

// burst keeps some leases, makes many calls at once, and counts the leases kept and the calls granted.
func (d *driver) burst(ctx context.Context, o order) line {
	begun := time.Now()
	kept := make([]*client.Lease, o.Keep)
	working, stop := make([]context.Context, o.Keep), make([]func(), o.Keep)
	var taking sync.WaitGroup
	for i := range kept {
		taking.Go(func() {
			lease, err := d.locks.TryAcquire(ctx, fmt.Sprintf("%s/kept/%d", o.Resource, i), client.TTL(ms(o.TTLMS)))
			if err == nil {
				kept[i] = lease
				working[i], stop[i] = lease.KeepAlive(ctx) //nolint:fatcontext // one context a lease, none within another
			}
		})
	}
	taking.Wait()
	var calls sync.WaitGroup
	var done atomic.Int64
	for i := range o.Calls {
		calls.Go(func() {
			lease, err := d.locks.Acquire(ctx, fmt.Sprintf("%s/%d", o.Resource, i), client.TTL(ms(o.TTLMS)), client.Wait(ms(o.WaitMS)), client.Patience(ms(*o.PatienceMS)))
			if err == nil && lease.Release(ctx) == nil {
				done.Add(1)
			}
		})
	}
	calls.Wait()
	time.Sleep(time.Until(begun.Add(ms(o.WorkMS))))
	still := 0
	for i, lease := range kept {
		if lease == nil {
			continue
		}
		lost := working[i].Err() != nil
		stop[i]()
		if lease.Release(ctx) == nil && !lost {
			still++
		}
	}
	return line{Result: "burst", Done: done.Load(), Kept: still}
}

// inside acquires what its work already holds, together with another resource.
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

// beside starts a goroutine within the work, which acquires the resource that the work holds.
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
	case errors.Is(err, errRaised):
		name = "raised"
	case errors.Is(err, context.Canceled):
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
	return line{Result: name, TimedOut: errors.Is(err, context.DeadlineExceeded), Message: err.Error()}
}
