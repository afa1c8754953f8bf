package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"time"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencing"
)

// exampleService stands in for a service.
func exampleService() (url string, stop func()) {
	server := httptest.NewServer(&fake{})
	return server.URL, server.Close
}

func ExampleClient_Do() {
	url, stop := exampleService()
	defer stop()

	locks, err := client.New([]string{url}, client.WithHolder("billing-7"))
	if err != nil {
		fmt.Println(err)
		return
	}
	err = locks.Do(context.Background(), "orders/42", func(ctx context.Context, l *client.Lease) error {
		// Pass ctx on: it is cancelled with client.ErrLeaseLost in time. Pass
		// l.Token() to the storage: it refuses the write if ctx came too late.
		fmt.Println("working on", l.Resource(), "with a token:", l.Token().Valid())
		return ctx.Err()
	})
	fmt.Println("error:", err)
	// Output:
	// working on orders/42 with a token: true
	// error: <nil>
}

func ExampleClient_Do_nested() {
	url, stop := exampleService()
	defer stop()
	locks, err := client.New([]string{url})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	err = locks.Do(ctx, "orders/42", func(ctx context.Context, outer *client.Lease) error {
		return locks.Do(ctx, "orders/42", func(_ context.Context, inner *client.Lease) error {
			fmt.Println("the same lease:", inner.Token() == outer.Token())
			return nil
		})
	})
	fmt.Println("error:", err)
	// Output:
	// the same lease: true
	// error: <nil>
}

// A transfer needs both accounts: one lease has them, or neither, and each has a token
// of its own for the storage.
func ExampleClient_DoAll() {
	url, stop := exampleService()
	defer stop()
	locks, err := client.New([]string{url})
	if err != nil {
		fmt.Println(err)
		return
	}
	accounts := []string{"accounts/2", "accounts/1"}
	err = locks.DoAll(context.Background(), accounts, func(ctx context.Context, l *client.Lease) error {
		for _, part := range l.Parts() { // in the order of their names: claims in one order do not block each other
			fmt.Println("claim", part.Resource, "with a token:", part.Token.Valid())
		}
		return ctx.Err()
	})
	fmt.Println("error:", err)
	// Output:
	// claim accounts/1 with a token: true
	// claim accounts/2 with a token: true
	// error: <nil>
}

func ExampleClient_Do_options() {
	url, stop := exampleService()
	defer stop()
	locks, err := client.New([]string{url}, client.WithHolder("worker-1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	if _, err := locks.TryAcquire(ctx, "reports/daily"); err != nil {
		fmt.Println(err)
		return
	}
	err = locks.Do(ctx, "reports/daily", func(context.Context, *client.Lease) error { return nil },
		client.TTL(5*time.Second), client.Wait(100*time.Millisecond))
	if problem := (*client.ProblemError)(nil); errors.Is(err, client.ErrHeld) && errors.As(err, &problem) {
		fmt.Println("held by", problem.Holder)
	}
	// Output: held by worker-1
}

func ExampleLease_KeepAlive() {
	url, stop := exampleService()
	defer stop()
	locks, err := client.New([]string{url})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	lease, err := locks.Acquire(ctx, "leader", client.TTL(5*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	leading, end := lease.KeepAlive(ctx, client.Margin(time.Second))
	fmt.Println("leading:", leading.Err() == nil)
	end()
	fmt.Println("released:", lease.Release(ctx))
	// Output:
	// leading: true
	// released: <nil>
}

// A job that another process does already is left to it, and says who does it.
func ExampleClient_TryDo() {
	url, stop := exampleService()
	defer stop()
	locks, err := client.New([]string{url}, client.WithHolder("cron-1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	job := func(ctx context.Context, _ *client.Lease) error {
		again := locks.TryDo(context.Background(), "jobs/report", nil) // as another process would
		var problem *client.ProblemError
		if errors.Is(again, client.ErrHeld) && errors.As(again, &problem) {
			fmt.Println("held by", problem.Holder)
		}
		return ctx.Err()
	}
	// Not to queue is not to give up: a server may restart meanwhile.
	fmt.Println("error:", locks.TryDo(context.Background(), "jobs/report", job, client.Patience(10*time.Second)))
	// Output:
	// held by cron-1
	// error: <nil>
}

// One process leads, and the others wait until it resigns, or loses the lease.
func ExampleClient_Elect() {
	url, stop := exampleService()
	defer stop()
	locks, err := client.New([]string{url}, client.WithHolder("web-1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	err = locks.Elect(context.Background(), "scheduler", func(ctx context.Context, l *client.Lease) error {
		fmt.Println("leading", l.Resource()) // until ctx ends; what it writes carries l.Token()
		return ctx.Err()                     // it resigns
	}, client.TTL(5*time.Second))
	fmt.Println("error:", err)
	// Output:
	// leading scheduler
	// error: <nil>
}

// Three at most use the printer at once.
func ExampleSlots() {
	url, stop := exampleService()
	defer stop()
	locks, err := client.New([]string{url})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = locks.Do(context.Background(), "printer", func(ctx context.Context, _ *client.Lease) error {
		fmt.Println("printing")
		return ctx.Err()
	}, client.Slots(3))
	fmt.Println("error:", err)
	// Output:
	// printing
	// error: <nil>
}

// Settings that the calls of a program share.
func ExampleAcquireOptions() {
	url, stop := exampleService()
	defer stop()
	locks, err := client.New([]string{url})
	if err != nil {
		fmt.Println(err)
		return
	}
	settings := client.AcquireOptions{client.TTL(10 * time.Second), client.Wait(time.Second)}
	ctx := context.Background()
	err = locks.Do(ctx, "orders/42", func(ctx context.Context, _ *client.Lease) error { return ctx.Err() }, settings)
	fmt.Println("error:", err)
	lease, err := locks.Acquire(ctx, "orders/43", settings...)
	fmt.Println("error:", err)
	fmt.Println("released:", lease.Release(ctx))
	// Output:
	// error: <nil>
	// error: <nil>
	// released: <nil>
}

// What docs/how-to/migrate.md shows: a mutex that is locked, extended and unlocked
// by hand becomes a call.
func ExampleClient_Do_migrating() {
	url, stop := exampleService()
	defer stop()
	locks, err := client.New([]string{url})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	ship := func(ctx context.Context, order int, token fencing.Token) error {
		fmt.Println("shipping order", order, "with a token:", token.Valid())
		return ctx.Err()
	}
	err = locks.Do(ctx, "orders/42", func(ctx context.Context, lease *client.Lease) error {
		return ship(ctx, 42, lease.Token()) // ctx ends before the lease does
	}, client.TTL(10*time.Second), client.Wait(5*time.Second))
	fmt.Println("error:", err)
	// Output:
	// shipping order 42 with a token: true
	// error: <nil>
}
