package replica_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/memstore"
	"github.com/fencelock/fencelock/lockcore/replica/storetest"
)

// storeWeakness is a defect of a shared store, for a mutant.
type storeWeakness int

const (
	sound           storeWeakness = iota
	keepsItsLife                  // a store that lost commits has the earlier incarnation
	expiresByServer               // each server's own clock says what has expired
	missesConflicts               // what was read before another server's commit is committed
)

// sharedStore is a store that several servers use, with the faults of a real one.
type sharedStore struct {
	*memstore.Store
	weak  storeWeakness
	stale memstore.Snapshot // of a moment ago
	now   func() time.Time
	fault storeFault // of the next update
}

type storeFault int

const (
	noFault    storeFault = iota
	conflict              // another server commits between reads and commit: fn runs again
	lostAnswer            // committed, and an error all the same
	lostCommit            // an error, and nothing committed
)

var errCommit = errors.New("the connection broke while it committed")

// server is one server's access to the store.
type server struct {
	*sharedStore
	ahead time.Duration // of the store's clock is this server's
}

func (s *server) Update(ctx context.Context, fn func(replica.Tx) error) error {
	fault := s.fault
	s.fault = noFault
	switch fault {
	case conflict:
		return s.conflicting(ctx, fn)
	case lostCommit:
		return errCommit
	}
	err := s.commit(ctx, fn)
	if err == nil && fault == lostAnswer {
		err = errCommit
	}
	return err
}

func (s *server) commit(ctx context.Context, fn func(replica.Tx) error) error {
	return s.Store.Update(ctx, func(tx replica.Tx) error { return fn(s.seen(tx)) })
}

// conflicting runs fn on the state before another commit, and then again after it.
func (s *server) conflicting(ctx context.Context, fn func(replica.Tx) error) error {
	before := memstore.New(memstore.Options{Now: s.now})
	before.Restore(s.stale)
	early := &recorder{status: s.status(ctx)}
	err := before.Update(ctx, func(tx replica.Tx) error {
		early.Tx = s.seen(tx)
		return fn(early)
	})
	if s.weak != missesConflicts {
		return s.commit(ctx, fn)
	}
	return errors.Join(err, s.Store.Update(ctx, func(tx replica.Tx) error {
		for _, write := range early.writes {
			write(tx)
		}
		return nil
	}))
}

func (s *server) status(ctx context.Context) (status replica.Status) {
	_ = s.View(ctx, func(tx replica.Tx) error {
		status = tx.Status()
		return nil
	})
	return status
}

// seen is the part of a transaction that the server sees.
func (s *server) seen(tx replica.Tx) replica.Tx {
	if s.weak == expiresByServer {
		return &ownClock{Tx: tx, ahead: s.ahead}
	}
	return tx
}

// recorder notes what a transaction writes.
type recorder struct {
	replica.Tx
	status replica.Status
	writes []func(replica.Tx)
}

func (r *recorder) Status() replica.Status { return r.status }

func (r *recorder) Put(key string, value []byte, ttl time.Duration) {
	value = append([]byte{}, value...)
	r.writes = append(r.writes, func(tx replica.Tx) { tx.Put(key, value, ttl) })
	r.Tx.Put(key, value, ttl)
}

func (r *recorder) Delete(key string) {
	r.writes = append(r.writes, func(tx replica.Tx) { tx.Delete(key) })
	r.Tx.Delete(key)
}

// ownClock is a transaction whose rows expire by the server's clock.
type ownClock struct {
	replica.Tx
	ahead time.Duration
}

func (c *ownClock) Get(key string) ([]byte, time.Duration) {
	value, left := c.Tx.Get(key)
	if left > 0 && left <= c.ahead {
		return nil, 0
	}
	return value, left
}

// sharing starts several servers over one store; the clock of one of them is ahead.
func sharing(weak storeWeakness) *storetest.Shared {
	clock := time.Unix(1_800_000_000, 0)
	now := func() time.Time { return clock }
	s := &sharedStore{Store: memstore.New(memstore.Options{Now: now}), weak: weak, now: now}
	s.stale = s.Snapshot()
	return &storetest.Shared{
		Servers: []replica.Store{&server{sharedStore: s}, &server{sharedStore: s, ahead: 4 * time.Second}},
		Now:     now,
		Pass:    func(d time.Duration) { clock = clock.Add(d) },
		Disturb: func(r *rand.Rand) { s.fault = storeFault(1 + r.IntN(3)) },
		Save:    func() { s.stale = s.Snapshot() },
		Lose: func() { // as the promotion of an asynchronous standby does
			s.Restore(s.stale)
			if s.weak != keepsItsLife {
				s.Restart(true)
			}
		},
	}
}

func history(seed uint64, weak storeWeakness) (leases int, err error) {
	return storetest.History(rand.New(rand.NewPCG(seed, 17)), sharing(weak), 100)
}

// Several servers over one store keep their promises through conflicts, commits whose reply is lost, and lost
// commits.
func TestServersThatShareAStore(t *testing.T) { shareAStore(t, 50_000) }

func TestSoakServersThatShareAStore(t *testing.T) {
	testenv.Long(t, "a history of servers on one store that is one in a million leases")
	shareAStore(t, 1_000_000)
}

// shareAStore runs random histories until n leases were granted.
func shareAStore(t *testing.T, leases int) {
	t.Helper()
	testenv.Computes(t)
	total, seed := 0, uint64(0)
	for ; total < leases; seed++ {
		grants, err := history(seed, sound)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		total += grants
	}
	t.Logf("%d leases in %d histories", total, seed)
}

// The test notices each mutant of a store.
func TestStoresThatDoWrong(t *testing.T) {
	for name, weak := range map[string]storeWeakness{
		"no timeline in the incarnation": keepsItsLife,
		"expiry by a server's own clock": expiresByServer,
		"a conflict that is not noticed": missesConflicts,
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(300) {
				if _, err := history(seed, weak); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("it was not noticed")
		})
	}
}
