package pgstore

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// trips counts round trips: all that a store sends in one round trip goes out in one write to its connection.
type trips struct{ n atomic.Int64 }

func (c *trips) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return counted{conn, c}, err
}

type counted struct {
	net.Conn
	trips *trips
}

func (c counted) Write(b []byte) (int, error) {
	c.trips.n.Add(1)
	return c.Conn.Write(b)
}

// quiet are options of a store that does no work in the background.
func quiet(c *trips) Options {
	opts := patient()
	opts.sweep.rest, opts.dial = time.Hour, c.dial
	return opts
}

// openLocker starts a server that observes its node once, and then does no work in the background.
func openLocker(t *testing.T, url string, c *trips) *sets.Locker {
	t.Helper()
	n := nodetest.Over(t, openStore(t, url, quiet(c)), replica.Options{Bootstrap: true})
	locker, err := sets.New(sets.Config{NodeTimeout: 5 * time.Second, WatchInterval: time.Hour}, []node.Node{n})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = locker.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	testenv.Eventually(t, 20*time.Second, func() error { return pair(t, locker, "ready") })
	return locker
}

// pair acquires and releases under a key that was never used.
func pair(t *testing.T, locker *sets.Locker, key string) error {
	t.Helper()
	l := servicetest.ByID{Calls: locker}
	lease, err := l.Acquire(t.Context(), lockcore.Request{Resource: "r/" + key[:1], IdempotencyKey: key, TTL: 30 * time.Second})
	if err == nil {
		err = l.Release(t.Context(), lease.ID)
	}
	return err
}

// commits returns how many transactions have written.
func commits(t *testing.T, url string) int64 {
	t.Helper()
	return query[int64](t, url, `SELECT last_value FROM fencelock.writes`)
}

// While a server is alone, an acquire under a new key and its release take one round trip and one commit each, even
// for a resource that was never used. While another server writes in between, they take two round trips each.
func TestTripsOfAPair(t *testing.T) {
	url := testenv.Postgres(t).OwnerURL()
	var mine, others trips
	alone := openLocker(t, url, &mine)
	measure := func(what string, pairs int, between func(i int), want int64) {
		t.Helper()
		began, wrote := time.Now(), commits(t, url)
		trips := int64(0)
		for i := range pairs {
			between(i)
			before := mine.n.Load()
			if err := pair(t, alone, fmt.Sprintf("%c%s%d", 'a'+rune(i%20), what, i)); err != nil {
				t.Fatal(err)
			}
			trips += mine.n.Load() - before
		}
		// Each server sends a heartbeat once a second, and a transaction that comes after
		// clockKeeps has to ask for the clock again.
		took := time.Since(began)
		beats, slow := 1+int64(took/time.Second), int64(took/clockKeeps)
		if trips > want+4*beats+2*slow {
			t.Errorf("%s: %d pairs took %d round trips in %s, want %d", what, pairs, trips, took, want)
		}
		if got := commits(t, url) - wrote; what == "alone" && got > int64(pairs)*2+beats {
			t.Errorf("%s: %d pairs made %d commits in %s", what, pairs, got, took)
		}
	}
	measure("settle", 1, func(int) {}, 10)
	measure("alone", 20, func(int) {}, 40)
	other := openLocker(t, url, &others)
	measure("with another", 20, func(i int) {
		if err := pair(t, other, fmt.Sprintf("z%d", i)); err != nil {
			t.Fatal(err)
		}
	}, 81) // the first finds that the server is not alone any more
}
