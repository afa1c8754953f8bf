package pgstore

import (
	"context"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/servicetest"
)

func BenchmarkPair(b *testing.B) {
	pg := testenv.StartPostgres(b)
	store := openStore(b, pg.OwnerURL(), Options{Timeout: time.Minute})
	engine, err := replica.New(b.Context(), "postgres", store, replica.Options{Bootstrap: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = engine.Close() })
	locker, err := redlock.New(redlock.Config{NodeTimeout: 5 * time.Second, DefaultTTL: time.Minute}, []node.Node{engine})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = locker.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-stopped })
	testenv.Eventually(b, 20*time.Second, func() error {
		lease, err := locker.Acquire(ctx, lockcore.AcquireRequest{Resource: "x"})
		if err == nil {
			err = locker.Release(ctx, lease.ID)
		}
		return err
	})
	servicetest.BenchmarkPairs(b, locker, nil)
}
