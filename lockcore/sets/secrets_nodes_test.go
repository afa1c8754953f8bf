package sets_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// kept returns the secrets that the nodes keep.
func kept(t *testing.T, models []*nodetest.Model) (secrets []node.Secrets) {
	t.Helper()
	for _, m := range models {
		seen, err := m.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, seen.Marks.Secrets)
	}
	return secrets
}

// A node that restarts empty gets the secret back with its admission. Leases survive the restart of every node, one
// after the other.
func TestSecretOutlivesRestarts(t *testing.T) {
	clockCluster(t, 3, func(t *testing.T, l *locker, models []*nodetest.Model, _ *jumps) { //nolint:thelper // it is the test itself
		before := kept(t, models)
		if before[0] == "" || before[1] != before[0] || before[2] != before[0] {
			t.Fatalf("after the bootstrap the nodes keep %s", before)
		}
		lease, err := l.Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range models {
			m.Restart(false)
			for range 5 {
				time.Sleep(4 * time.Second)
				if _, err := l.Extend(t.Context(), lease.ID, 10*time.Second); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i, secrets := range kept(t, models) {
			if secrets != before[0] {
				t.Errorf("node %d keeps %s, want %s", i+1, secrets, before[0])
			}
		}
	})
}

// After the loss of every node the cluster has another secret, and accepts no earlier lease id.
func TestABootstrapDrawsAnotherSecret(t *testing.T) {
	clockCluster(t, 3, func(t *testing.T, l *locker, models []*nodetest.Model, _ *jumps) { //nolint:thelper // it is the test itself
		before := kept(t, models)
		lease, err := l.Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range models {
			m.Restart(true) // also what was kept is no longer used
		}
		time.Sleep(time.Minute)
		if after := kept(t, models); after[0] == before[0] || after[1] != after[0] || after[2] != after[0] {
			t.Errorf("the nodes keep %s, before %s", after, before)
		}
		if _, err := l.Extend(t.Context(), lease.ID, 0); !errors.Is(err, lockcore.ErrNotHeld) {
			t.Errorf("a lease from before: %v", err)
		}
	})
}

// A rotation reaches a node that was unreachable, and ends no lease. A second rotation is refused while a lease under
// the first secret may be live.
func TestRotateSecret(t *testing.T) {
	clockCluster(t, 3, func(t *testing.T, l *locker, models []*nodetest.Model, _ *jumps) { //nolint:thelper // it is the test itself
		ctx := t.Context()
		first, err := l.Acquire(ctx, lockcore.Request{Resource: "a", TTL: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		models[2].SetReplica(true) // does not vote
		time.Sleep(time.Second)
		if err := l.RotateSecret(ctx, false); err != nil {
			t.Fatal(err)
		}
		if now := kept(t, models); now[0] != now[1] || now[2] == now[0] {
			t.Errorf("the nodes keep %s", now)
		}
		if _, err := l.Extend(ctx, first.ID, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		models[2].SetReplica(false)
		time.Sleep(5 * time.Second)
		second, err := l.Acquire(ctx, lockcore.Request{Resource: "b", TTL: 10 * time.Second})
		if err != nil || second.ID[:6] == first.ID[:6] { // version and key
			t.Fatalf("the new secret does not seal: %v", err)
		}
		time.Sleep(time.Second)
		if err := l.RotateSecret(ctx, false); !errors.Is(err, membership.ErrSecretInUse) {
			t.Fatalf("a second rotation: %v", err)
		}
		for _, lease := range []lockcore.Lease{first, second} {
			if _, err := l.Extend(ctx, lease.ID, 10*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.RotateSecret(ctx, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		if _, err := l.Extend(ctx, first.ID, 0); !errors.Is(err, lockcore.ErrNotHeld) {
			t.Errorf("a lease of the secret before the last: %v", err)
		}
		if _, err := l.Extend(ctx, second.ID, 0); err != nil {
			t.Errorf("a lease of the last secret: %v", err)
		}
		time.Sleep(20 * time.Minute)
		if err := l.RotateSecret(ctx, false); err != nil {
			t.Errorf("a rotation once no lease of the one before can live: %v", err)
		}
		if now := kept(t, models); now[0] != now[1] || now[1] != now[2] {
			t.Errorf("the nodes keep %s", now)
		}
	})
}

// A server that is out of touch with the nodes does not say that a lease has ended only because it does not know the
// key of its id: the secret may have been replaced meanwhile.
func TestUnknownKeyWithoutAQuorum(t *testing.T) {
	clockCluster(t, 3, func(t *testing.T, l *locker, models []*nodetest.Model, _ *jumps) { //nolint:thelper // it is the test itself
		foreign := newForeignID(t)
		if _, err := l.Lease(t.Context(), foreign); !errors.Is(err, lockcore.ErrNotHeld) {
			t.Errorf("another cluster's: %v", err)
		}
		for _, m := range models[:2] {
			m.SetReplica(true)
		}
		time.Sleep(5 * time.Second)
		for name, err := range map[string]error{"release": l.Release(t.Context(), foreign), "look": second(l.Lease(t.Context(), foreign))} {
			if !errors.Is(err, lockcore.ErrNoQuorum) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A server has just started, and gets its keys at the moment when it opens an id: first it has none, and then it
// knows those of a quorum. The lease is live, so the response must not be 404.
func TestKeysThatComeWhileAnIDIsOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys, err := keyring.New(make([]byte, node.MinSecretBytes))
		if err != nil {
			t.Fatal(err)
		}
		var missing atomic.Int32 // so many looks find no keys
		l := running(t, sets.Config{New: true, Keys: func() *keyring.Ring {
			if missing.Add(-1) >= 0 {
				return nil
			}
			return keys
		}}, []node.Node{nodetest.NewModel(nodetest.ModelOptions{})})
		time.Sleep(5 * time.Second)
		lease, err := l.Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		missing.Store(1)
		if err := l.Release(t.Context(), lease.ID); err != nil {
			t.Errorf("release: %v", err)
		}
	})
}

// A server that sees a quorum, but no secret that a quorum has, cannot say of any id that its lease has ended.
func TestUnknownKeyWithoutASecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		foreign := newForeignID(t)
		var nodes []node.Node
		for i := range 3 {
			nodes = append(nodes, nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprintf("n%d", i+1)}))
		}
		for _, n := range nodes {
			m := n.(*nodetest.Model)
			seen, err := m.Observe(t.Context())
			a := node.Admission{Incarnation: seen.Incarnation, Epoch: 1, Bootstrapped: 1, Cluster: membership.ClusterOf(nodes), MaxTTL: 10 * time.Second}
			if err := errors.Join(err, m.Stage(t.Context(), a), m.Admit(t.Context(), a)); err != nil {
				t.Fatal(err)
			}
		}
		l := running(t, sets.Config{MaxTTL: 10 * time.Second}, nodes)
		time.Sleep(5 * time.Second)
		if status := l.Status(); status.Voting != 3 {
			t.Fatalf("%+v", status)
		}
		if err := l.Release(t.Context(), foreign); !errors.Is(err, lockcore.ErrNoQuorum) {
			t.Errorf("release: %v", err)
		}
	})
}

// keeper is a Model whose link may be cut. It notes what it was admitted with.
type keeper struct {
	*nodetest.Model
	cut      atomic.Bool
	deaf     atomic.Bool // to new secrets
	mu       sync.Mutex
	admitted []node.Secrets
}

func (k *keeper) Observe(ctx context.Context) (node.Observation, error) {
	if k.cut.Load() {
		return node.Observation{}, errCut
	}
	return k.Model.Observe(ctx)
}

func (k *keeper) ReplaceSecrets(ctx context.Context, had, secrets node.Secrets) error {
	if k.deaf.Load() {
		return errCut
	}
	return k.Model.ReplaceSecrets(ctx, had, secrets)
}

func (k *keeper) Admit(ctx context.Context, a node.Admission) error {
	k.mu.Lock()
	k.admitted = append(k.admitted, a.Secrets)
	k.mu.Unlock()
	return k.Model.Admit(ctx, a)
}

// keepers is a running cluster of such nodes.
func keepers(t *testing.T, test func(t *testing.T, l *locker, nodes []*keeper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var all []*keeper
		var nodes []node.Node
		for i := range 3 {
			k := &keeper{Model: nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprintf("n%d", i+1)})}
			all, nodes = append(all, k), append(nodes, k)
		}
		l := running(t, sets.Config{New: true, MaxTTL: 10 * time.Second}, nodes)
		time.Sleep(5 * time.Second)
		test(t, l, all)
	})
}

// A rejoin gives the secret to the node. If the node voted without it for a moment, it would not count for the quorum
// that keeps the secret.
func TestARejoinCarriesTheSecret(t *testing.T) {
	keepers(t, func(t *testing.T, _ *locker, nodes []*keeper) { //nolint:thelper // it is the test itself
		nodes[0].Restart(false)
		time.Sleep(time.Minute)
		nodes[0].mu.Lock()
		defer nodes[0].mu.Unlock()
		if a := nodes[0].admitted; len(a) != 2 || a[0] == "" || a[1] != a[0] {
			t.Errorf("it was admitted with %s", a)
		}
	})
}

// A node was out of reach during a rotation, and stayed admitted. The servers give it the new secret.
func TestARotationReachesWhoMissedIt(t *testing.T) {
	keepers(t, func(t *testing.T, l *locker, nodes []*keeper) { //nolint:thelper // it is the test itself
		nodes[0].cut.Store(true)
		time.Sleep(time.Second)
		if err := l.RotateSecret(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		nodes[0].cut.Store(false)
		time.Sleep(5 * time.Second)
		if now := kept(t, []*nodetest.Model{nodes[0].Model, nodes[1].Model, nodes[2].Model}); now[0] != now[1] || now[1] != now[2] {
			t.Errorf("the nodes keep %s", now)
		}
	})
}

// A rotation that fewer than a quorum accepted is finished when it is repeated, forced or not. If the repetition drew
// another secret, that would replace the only one that a quorum has, because a node keeps two.
func TestARotationThatFailedIsRepeated(t *testing.T) {
	for _, force := range []bool{false, true} {
		keepers(t, func(t *testing.T, l *locker, nodes []*keeper) { //nolint:thelper // it is the test itself
			all := []*nodetest.Model{nodes[0].Model, nodes[1].Model, nodes[2].Model}
			lease, err := l.Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			before := kept(t, all)[0]
			nodes[1].deaf.Store(true)
			nodes[2].deaf.Store(true)
			if _, ok := errors.AsType[*lockcore.QuorumError](l.RotateSecret(t.Context(), false)); !ok {
				t.Fatal("one node of three is enough")
			}
			time.Sleep(time.Second)
			began := kept(t, all)[0]
			nodes[1].deaf.Store(false)
			nodes[2].deaf.Store(false)
			if err := l.RotateSecret(t.Context(), force); err != nil {
				t.Fatalf("repeated, with force %v: %v", force, err)
			}
			for i, secrets := range kept(t, all) {
				if secrets != began || secrets == before {
					t.Errorf("force %v: node %d keeps %s, want %s", force, i+1, secrets, began)
				}
			}
			time.Sleep(5 * time.Second)
			if _, err := l.Extend(t.Context(), lease.ID, 10*time.Second); err != nil {
				t.Errorf("force %v: a lease from before: %v", force, err)
			}
		})
	}
}

func second(_ lockcore.Lease, err error) error { return err }

// newForeignID makes a lease id under the secret of another cluster.
func newForeignID(t *testing.T) string {
	t.Helper()
	keys, err := keyring.New(make([]byte, node.MinSecretBytes))
	if err != nil {
		t.Fatal(err)
	}
	l := running(t, sets.Config{New: true, Keys: func() *keyring.Ring { return keys }}, []node.Node{nodetest.NewModel(nodetest.ModelOptions{})})
	time.Sleep(5 * time.Second)
	lease, err := l.Acquire(t.Context(), lockcore.Request{Resource: "r"})
	if err != nil {
		t.Fatal(err)
	}
	return lease.ID
}
