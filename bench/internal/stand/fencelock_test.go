package stand_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/fencelock/fencelock/bench/internal/barehttp"
	"github.com/fencelock/fencelock/bench/internal/delay"
	"github.com/fencelock/fencelock/bench/internal/load"
	"github.com/fencelock/fencelock/bench/internal/peer"
	"github.com/fencelock/fencelock/bench/internal/rawhttp"
	"github.com/fencelock/fencelock/bench/internal/stand"
	"github.com/fencelock/fencelock/internal/testenv"
)

// What the benchmark sends is what the server of this tree takes.
func TestTheServerAndItsFloors(t *testing.T) {
	s := stand.NewScope("test", io.Discard)
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	program, err := stand.Build(ctx, "../../..", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	redis, err := stand.StartRedis(ctx, s, 3, testenv.PersistNone)
	if err != nil {
		t.Fatal(err)
	}
	server, err := stand.StartFencelock(ctx, s, program, redis.URLs(0))
	if err != nil {
		t.Fatal(err)
	}
	bare, err := peer.NewBare(redis.URLs(1))
	if err != nil {
		t.Fatal(err)
	}
	s.Cleanup(func() { _ = bare.Close() })
	pair(ctx, t, peer.NewHTTP(server.Addr))
	pair(ctx, t, bare)
	drive(ctx, t, server.Addr)
	answers, err := barehttp.Record(ctx, server.Addr, rawhttp.Host)
	if err != nil || len(answers) != 2 || answers[0].Status != 201 || answers[1].Status != 204 || len(answers[0].Body) == 0 {
		t.Errorf("%+v, %v", answers, err)
	}
}

// The test's program is also the network that StartNetwork starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == delay.Command {
		if err := delay.Serve(context.Background(), os.Stdout, os.Args[2:]); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// Through a network Redis answers, and not before a round trip.
func TestNetwork(t *testing.T) {
	s := stand.NewScope("test", io.Discard)
	defer s.Close()
	redis, err := stand.StartRedis(t.Context(), s, 1, testenv.PersistNone)
	if err != nil {
		t.Fatal(err)
	}
	const trip = 20 * time.Millisecond
	n, err := stand.StartNetwork(t.Context(), s, trip, redis.Addrs())
	if err != nil {
		t.Fatal(err)
	}
	if len(n.Addrs) != 1 || n.Addrs[0] == redis.Addrs()[0] || n.Trip < trip*9/10 || n.CPU() == 0 {
		t.Errorf("%v, a PING in %s, %s of a processor", n.Addrs, n.Trip, n.CPU())
	}
}

// drive has each client of the tree make pairs.
func drive(ctx context.Context, t *testing.T, addr string) {
	t.Helper()
	for _, p := range peer.Programs("../../..", addr) {
		if err := p.Installed(); err != nil {
			t.Fatal(err)
		}
		job := load.Job{Workers: 3, Measure: 200 * time.Millisecond, Claim: func(worker, _ int) peer.Claim {
			return peer.Claim{Resource: fmt.Sprintf("%s/%d", p.Name(), worker), TTL: time.Minute}
		}}
		for pairs := 0; pairs == 0; { // a busy machine may let no worker run in this time
			o, err := load.Run(ctx, p, job, func() load.Usage { return load.Usage{Load: p.CPU()} })
			if err != nil || o.Failed > 0 || o.Busy > 0 {
				t.Fatalf("%s: %+v, %v", p.Name(), o, err)
			}
			pairs = o.Pairs
		}
		if p.CPU() == 0 {
			t.Errorf("%s used no processor", p.Name())
		}
	}
}

// pair takes a resource that another session then cannot have, and releases it.
func pair(ctx context.Context, t *testing.T, p peer.Peer) {
	t.Helper()
	claim := peer.Claim{Resource: "r", TTL: time.Minute}
	first, err1 := p.Open(ctx)
	second, err2 := p.Open(ctx)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	for range 3 {
		if err := first.Acquire(ctx, claim); err != nil {
			t.Fatalf("%s: acquire: %v", p.Name(), err)
		}
		if err := second.Acquire(ctx, claim); err != peer.ErrBusy { //nolint:errorlint // the value itself
			t.Errorf("%s: held: %v", p.Name(), err)
		}
		if err := first.Release(ctx); err != nil {
			t.Errorf("%s: release: %v", p.Name(), err)
		}
	}
}
