package replica_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/memstore"
)

// storeWeakness is what a shared store does wrong, for a mutant.
type storeWeakness int

const (
	sound           storeWeakness = iota
	keepsItsLife                  // a store that lost commits has the incarnation of before
	expiresByServer               // each server's own clock says what has expired
	missesConflicts               // what was read before somebody else's commit is committed
)

// sharedStore is a store that several servers use, with the faults of one.
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

// server is one server's way to the store.
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

// conflicting runs fn on the state of before another commit, and then again.
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

// seen is what the server sees of a transaction.
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

// history runs servers over one store, and notes what their clients were told.
type history struct {
	random  *rand.Rand
	now     time.Time
	store   *sharedStore
	servers []*server
	machine *replica.Machine
	epoch   node.Epoch
	leases  map[string]granted // the last of each resource that was answered
	owners  int
	grants  int
}

type granted struct {
	owner string
	token fencing.Token
	until time.Time
	open  bool // not released
}

const sharedTTL = 10 * time.Second

func newHistory(seed uint64, weak storeWeakness) *history {
	h := &history{
		random: rand.New(rand.NewPCG(seed, 17)), now: time.Unix(1_800_000_000, 0),
		machine: replica.NewMachine(replica.Rules{}), leases: make(map[string]granted),
	}
	now := func() time.Time { return h.now }
	h.store = &sharedStore{Store: memstore.New(memstore.Options{Now: now}), weak: weak, now: now}
	h.store.stale = h.store.Snapshot()
	h.servers = []*server{{sharedStore: h.store}, {sharedStore: h.store, ahead: 4 * time.Second}}
	return h
}

func (h *history) in(s *server, do func(*replica.Txn) error) error {
	return s.Update(context.Background(), func(tx replica.Tx) error { return h.machine.In(tx, do) })
}

// bootstrap admits the node after its quarantine, as a server does.
func (h *history) bootstrap() error {
	h.now = h.now.Add(sharedTTL)
	var seen node.Observation
	s := h.servers[0]
	if err := h.in(s, func(t *replica.Txn) error { seen = t.Observe(); return nil }); err != nil {
		return err
	}
	if seen.Admitted {
		return nil // it lost nothing
	}
	h.epoch = node.Epoch(h.now.UnixMilli()) << 10
	a := node.Admission{
		Incarnation: seen.Incarnation, Note: seen.Note, Epoch: h.epoch, Bootstrapped: h.epoch,
		Floor: node.FloorAt(h.now), MaxTTL: sharedTTL,
	}
	return errors.Join(
		h.in(s, func(t *replica.Txn) error { return t.Stage(a) }),
		h.in(s, func(t *replica.Txn) error { return t.Admit(a) }),
	)
}

func (h *history) vote(op node.Op) (reply node.Reply, err error) {
	op.Epoch = h.epoch
	err = h.in(h.servers[h.random.IntN(len(h.servers))], func(t *replica.Txn) error {
		reply = t.Vote(&op)
		return nil
	})
	return reply, err
}

func (h *history) acquire(resource string) error {
	h.owners++
	owner := fmt.Sprintf("owner%d", h.owners)
	sent := h.now
	reply, err := h.vote(node.Op{Kind: node.OpAcquire, Resource: resource, Owner: owner, TTL: sharedTTL})
	if err != nil || reply.Outcome != node.Granted {
		return nil //nolint:nilerr // no client believes that it has a lease
	}
	h.grants++
	last := h.leases[resource]
	switch {
	case reply.Grant <= last.token:
		return fmt.Errorf("%s: token %d after %d", resource, reply.Grant, last.token)
	case last.open && h.now.Before(last.until):
		return fmt.Errorf("%s: two leases, %s and %s", resource, last.owner, owner)
	}
	h.leases[resource] = granted{owner: owner, token: reply.Grant, until: sent.Add(sharedTTL), open: true}
	return nil
}

func (h *history) release(resource string) {
	lease := h.leases[resource]
	if !lease.open {
		return
	}
	lease.open = false
	h.leases[resource] = lease
	_, _ = h.vote(node.Op{Kind: node.OpRelease, Resource: resource, Owner: lease.owner, Token: lease.token})
}

// lose takes the last commits away, as the promotion of an asynchronous standby does.
func (h *history) lose() error {
	h.store.Restore(h.store.stale)
	if h.store.weak != keepsItsLife {
		h.store.Restart(true)
	}
	return h.bootstrap()
}

func (h *history) step() error {
	resource := fmt.Sprintf("r%d", h.random.IntN(3))
	switch n := h.random.IntN(100); {
	case n < 45:
		if h.random.IntN(4) == 0 {
			h.store.fault = storeFault(1 + h.random.IntN(3))
		}
		return h.acquire(resource)
	case n < 70:
		h.release(resource)
	case n < 85:
		h.now = h.now.Add(time.Duration(h.random.IntN(8000)) * time.Millisecond)
	case n < 97:
		h.store.stale = h.store.Snapshot()
	default:
		return h.lose()
	}
	return nil
}

// run returns the first violation, and how many leases were granted before.
func (h *history) run(steps int) (int, error) {
	if err := h.bootstrap(); err != nil {
		return 0, err
	}
	h.store.stale = h.store.Snapshot()
	for range steps {
		if err := h.step(); err != nil {
			return h.grants, err
		}
	}
	return h.grants, nil
}

// Several servers over one store keep their promises through conflicts, commits whose
// answer is lost, and lost commits.
func TestServersThatShareAStore(t *testing.T) { shareAStore(t, 50_000) }

func TestSoakServersThatShareAStore(t *testing.T) { shareAStore(t, 1_000_000) }

// shareAStore runs histories until so many leases were granted.
func shareAStore(t *testing.T, leases int) {
	t.Helper()
	for seed, total := uint64(0), 0; total < leases; seed++ {
		grants, err := newHistory(seed, sound).run(100)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		total += grants
	}
}

// Each mutant of a store is noticed.
func TestStoresThatDoWrong(t *testing.T) {
	for name, weak := range map[string]storeWeakness{
		"no timeline in the incarnation": keepsItsLife,
		"expiry by a server's own clock": expiresByServer,
		"a conflict that is not noticed": missesConflicts,
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(300) {
				if _, err := newHistory(seed, weak).run(100); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("it was not noticed")
		})
	}
}
