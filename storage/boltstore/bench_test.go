package boltstore

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

func BenchmarkPair(b *testing.B) {
	db, err := bbolt.Open(filepath.Join(b.TempDir(), "x.db"), 0o600, nil)
	if err != nil {
		b.Fatal(err)
	}
	store, err := New(db, Options{})
	if err != nil {
		b.Fatal(err)
	}
	embedded, err := replica.New(b.Context(), "embedded", store, replica.Options{Bootstrap: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = embedded.Close(); _ = store.Close(); _ = db.Close() })
	locker, err := sets.New(sets.Config{NodeTimeout: time.Second}, []node.Node{embedded})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = locker.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-stopped })
	for {
		locker := servicetest.ByID{Calls: locker}
		l, err := locker.Acquire(ctx, lockcore.Request{Resource: "x"})
		if err == nil {
			_ = locker.Release(ctx, l.ID)
			break
		}
	}
	servicetest.BenchmarkPairs(b, locker, nil)
}
