package stand_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/fencelock/fencelock/bench/internal/barehttp"
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
	pair(ctx, t, peer.NewHTTP(server.Addr), true)
	pair(ctx, t, bare, false)
	answers, err := barehttp.Record(ctx, server.Addr, rawhttp.Host)
	if err != nil || len(answers) != 2 || answers[0].Status != 201 || answers[1].Status != 204 || len(answers[0].Body) == 0 {
		t.Errorf("%+v, %v", answers, err)
	}
}

// pair takes a resource that another session then cannot have, and releases it.
func pair(ctx context.Context, t *testing.T, p peer.Peer, uses bool) {
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
		if uses {
			if err := first.Use(ctx); err != nil {
				t.Errorf("%s: use: %v", p.Name(), err)
			}
		}
		if err := first.Release(ctx); err != nil {
			t.Errorf("%s: release: %v", p.Name(), err)
		}
	}
}
