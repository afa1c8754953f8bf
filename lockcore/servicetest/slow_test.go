package servicetest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/memstore"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// bulkyStore takes long to remove all rows, as a database with many rows or a busy disk does. It gives up when the
// context ends.
type bulkyStore struct {
	*memstore.Store
	purge time.Duration
}

type purging struct {
	replica.Tx
	purged bool
}

func (p *purging) Purge() {
	p.purged = true
	p.Tx.Purge()
}

var errRehearsal = errors.New("only to see what the transaction does")

func (s *bulkyStore) Update(ctx context.Context, fn func(replica.Tx) error) error {
	var p purging
	_ = s.Store.Update(ctx, func(tx replica.Tx) error {
		p.Tx = tx
		_ = fn(&p)
		return errRehearsal
	})
	if p.purged {
		select {
		case <-time.After(s.purge):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.Store.Update(ctx, fn)
}

// The store of a cluster lost everything, and takes long to remove the rest. The cluster is still bootstrapped again,
// because each attempt gets more time than the one before.
func TestASlowStoreIsBootstrapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &bulkyStore{Store: memstore.New(memstore.Options{}), purge: 5 * time.Second}
		n, err := replica.New(t.Context(), "node", store, replica.Options{Bootstrap: true})
		if err != nil {
			t.Fatal(err)
		}
		l, err := sets.New(sets.Config{MaxTTL: 2 * time.Second}, []node.Node{n})
		if err != nil {
			t.Fatal(err)
		}
		locker := byID{l, servicetest.ByID{Calls: l}}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = locker.Run(ctx) })
		time.Sleep(time.Second)
		acquire := func() error {
			_, err := locker.Acquire(ctx, lockcore.Request{Resource: "r"})
			return err
		}
		if err := acquire(); err != nil {
			t.Fatal(err)
		}
		store.Wipe()
		time.Sleep(30 * time.Second)
		if err := acquire(); err != nil {
			t.Errorf("30 s after the loss: %v", err)
		}
		stop()
		running.Wait()
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}
