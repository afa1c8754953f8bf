package etcdstore

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/optimistic"
)

// loading counts how often all rows are loaded.
type loading struct {
	*service

	loads atomic.Int64
}

func (l *loading) Follow(ctx context.Context, m *optimistic.Mirror) error {
	l.loads.Add(1)
	return l.service.Follow(ctx, m)
}

// A server whose member is frozen follows the others' commits at the next member, even if other watches share its
// client. It does not load all rows again for each commit.
func TestTheWatchLeavesAFrozenMember(t *testing.T) {
	t.Parallel()
	etcd := testenv.StartEtcd(t, 3, testenv.EtcdOptions{})
	frozen := etcd.Follower()
	here, err := parse("etcd://" + frozen.Addr() + "," + etcd.Leader().Addr() + "/locks")
	if err != nil {
		t.Fatal(err)
	}
	c, err := dial(here, 300*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	one := &loading{service: newService(c, here.prefix)}
	s := &Store{Store: optimistic.New(one, optimistic.Options{Timeout: 20 * time.Second}), conn: c, target: here}
	t.Cleanup(func() { _ = s.Close() })
	other := openStore(t, "etcd://"+etcd.Leader().Addr()+"/locks")
	ctx, cancel := context.WithCancel(t.Context())
	hearing := make(chan struct{})
	go func() {
		defer close(hearing)
		s.Hear(ctx, "topic", func(string) {})
	}()
	t.Cleanup(func() { cancel(); <-hearing })
	increment(t, s)

	frozen.Freeze()
	for tries := 0; s.Update(ctx, func(tx replica.Tx) error { tx.Put("k", nil, 0); return nil }) != nil && tries < 20; tries++ {
		pause.For(ctx, retryPause) // the commit that finds it out fails: it may have been made
	}
	getRow(t, s, "n")
	one.loads.Store(0)
	const each = 20
	for range each {
		increment(t, other)
		increment(t, s)
	}
	if n, want := getRow(t, other, "n"), strconv.Itoa(2*each+1); n != want {
		t.Errorf("%s updates, want %s", n, want)
	}
	if loads := one.loads.Load(); loads > each/4 {
		t.Errorf("all rows were loaded %d times for %d commits of another server", loads, each)
	}
	frozen.Thaw()
}

// increment adds to a number in a transaction.
func increment(tb testing.TB, s *Store) {
	tb.Helper()
	if err := incremented(tb.Context(), s); err != nil {
		tb.Fatal(err)
	}
}

func incremented(ctx context.Context, s *Store) error {
	return s.Update(ctx, func(tx replica.Tx) error {
		raw, _ := tx.Get("n")
		n, _ := strconv.Atoi(string(raw))
		tx.Put("n", []byte(strconv.Itoa(n+1)), time.Hour)
		return nil
	})
}
