package redisnode_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/sets"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// awaitState waits until node i is in the state.
func (q *quorum) awaitState(t *testing.T, i int, state lockcore.NodeState) lockcore.NodeStatus {
	t.Helper()
	var now lockcore.NodeStatus
	testenv.Eventually(t, 10*time.Second, func() error {
		if now = q.Status().Nodes[i]; now.State != state {
			return fmt.Errorf("node %d is %s (%s), not %s", i, now.State, now.Reason, state)
		}
		return nil
	})
	return now
}

// cycle acquires and releases a resource. It returns its token, which must be above last.
func (q *quorum) cycle(t *testing.T, resource string, last fencing.Token) fencing.Token {
	t.Helper()
	lease := q.takeNext(t, resource, last)
	q.give(t, lease)
	return lease.Token
}

// A node that may have lost its state is quarantined for the longest TTL, is reported as such, and votes again by
// itself. Tokens rise all the time.
func TestNodeIsQuarantinedAndReadmitted(t *testing.T) {
	t.Parallel()
	faults := map[string]func(*testenv.Redis){
		"restart":  func(s *testenv.Redis) { s.Kill(); s.Restart() },
		"wipe":     func(s *testenv.Redis) { s.Kill(); s.Wipe(); s.Restart() },
		"flushall": func(s *testenv.Redis) { s.FlushAll() },
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := startQuorum(t, 3, nil, testenv.WithPersistence(testenv.PersistAOFAlways))
			q.awaitVoting(t, 3)
			token := q.cycle(t, "r", 0)
			fault(q.servers[0])
			status := q.awaitState(t, 0, lockcore.NodeQuarantined)
			if status.Wait <= 0 || status.Wait > 2*testMaxTTL || status.Reason == "" {
				t.Fatalf("%+v", status)
			}
			token = q.cycle(t, "r", token)
			q.awaitVoting(t, 3)
			// The readmitted node counts: with another one down, it is needed.
			q.servers[1].Kill()
			q.awaitState(t, 1, lockcore.NodeUnreachable)
			token = q.cycle(t, "r", token)
			q.cycle(t, "never seen before", 0)
			q.cycle(t, "r", token)
		})
	}
}

func TestPromotedReplicaIsNotTrusted(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 3, nil)
	q.awaitVoting(t, 3)
	token := q.cycle(t, "r", 0)
	other := testenv.StartRedis(t)
	q.servers[0].ReplicaOf(other) // copies its data over ours
	if s := q.awaitState(t, 0, lockcore.NodeRefused); !strings.Contains(s.Reason, "replica") {
		t.Fatalf("%+v", s)
	}
	token = q.cycle(t, "r", token)
	q.servers[0].Promote()
	q.awaitState(t, 0, lockcore.NodeQuarantined)
	q.awaitVoting(t, 3)
	q.cycle(t, "r", token)
}

// When a majority has lost its state, nothing is granted until the longest TTL has passed. Then the cluster is
// bootstrapped again, above every earlier token.
func TestLostMajorityIsBootstrappedAgain(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 5, nil)
	q.awaitVoting(t, 5)
	token := q.cycle(t, "r", 0)
	for _, s := range q.servers[:3] {
		s.Kill()
		s.Restart()
	}
	lost := time.Now()
	for i := range 3 {
		q.awaitState(t, i, lockcore.NodeQuarantined)
	}
	_, err := q.Acquire(t.Context(), lockcore.Request{Resource: "r"})
	var none *lockcore.QuorumError
	if !errors.As(err, &none) || none.Quorum != 3 || len(none.Nodes) != 5 {
		t.Fatalf("granted without a majority, or unexplained: %v", err)
	}
	if s := q.Status(); s.Ready || s.Reason == "" {
		t.Fatalf("%+v", s)
	}
	q.awaitVoting(t, 5)
	if waited := time.Since(lost); waited < testMaxTTL {
		t.Fatalf("bootstrapped after %s, before the longest TTL", waited)
	}
	q.cycle(t, "r", token)
}

func TestLostClusterIsBootstrappedAgain(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 3, func(c *sets.Config) { c.New = false })
	q.awaitVoting(t, 3)
	token := q.cycle(t, "r", 0)
	for range 2 {
		for _, s := range q.servers {
			s.Kill()
			s.Restart()
		}
		testenv.Eventually(t, 5*time.Second, func() error {
			if s := q.Status(); s.Voting > 0 {
				return fmt.Errorf("%d vote", s.Voting)
			}
			return nil
		})
		q.awaitVoting(t, 3)
		token = q.cycle(t, "r", token)
	}
}

// Unreachable nodes may still know the last tokens, so there is no bootstrap without them.
func TestUnreachableMajorityIsAwaited(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 3, nil, testenv.WithPersistence(testenv.PersistAOFAlways))
	q.awaitVoting(t, 3)
	token := q.cycle(t, "r", 0)
	for _, s := range q.servers[:2] {
		s.Freeze()
	}
	q.awaitState(t, 0, lockcore.NodeUnreachable)
	q.awaitState(t, 1, lockcore.NodeUnreachable)
	machine, began := testenv.MeasureLateness(t), time.Now()
	_, err := q.Acquire(t.Context(), lockcore.Request{Resource: "r"})
	if took := time.Since(began); !errors.Is(err, lockcore.ErrNoQuorum) || took > time.Second+4*machine.Longest() {
		t.Fatalf("%v after %s on a machine that is late by %s", err, took, machine.Longest())
	}
	for time.Since(began) < 3*testMaxTTL {
		if s := q.Status(); s.Ready || s.Nodes[2].State != lockcore.NodeVoting {
			t.Fatalf("%+v", s)
		}
		<-time.After(50 * time.Millisecond)
	}
	for _, s := range q.servers[:2] {
		s.Thaw()
	}
	q.awaitVoting(t, 3)
	q.cycle(t, "r", token)
}

// Two servers admit the same nodes at the same time.
func TestTwoServersAdmitTogether(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 5, nil)
	other := joinQuorum(t, q.servers, nil)
	q.awaitVoting(t, 5)
	other.awaitVoting(t, 5)
	token := q.cycle(t, "r", 0)
	for i := range 3 {
		q.servers[i].Kill()
		q.servers[i].Restart()
		q.awaitState(t, i, lockcore.NodeQuarantined)
		q.awaitVoting(t, 5)
		other.awaitVoting(t, 5)
		token = q.cycle(t, "r", token)
		token = other.cycle(t, "r", token)
	}
}

// A long lease outlives the restart of every node, one after the other (rule 21).
func TestLiveLeaseSurvivesRollingRestart(t *testing.T) {
	testenv.Long(t, "a lease that a rolling restart of real nodes ends")
	t.Parallel()
	q := startQuorum(t, 3, func(c *sets.Config) { c.MaxTTL = 5 * time.Second })
	q.awaitVoting(t, 3)
	lease := q.take(t, "long")
	for round := range 3 {
		for i := range 20 { // pushes every node's high far above the lease's token
			q.cycle(t, fmt.Sprint("other/", round, i), 0)
			if _, err := q.Extend(t.Context(), lease.ID, 0); err != nil && !errors.Is(err, lockcore.ErrNoQuorum) {
				t.Fatalf("the lease was lost: %v", err)
			}
		}
		q.servers[round].Kill()
		q.servers[round].Restart()
		q.awaitState(t, round, lockcore.NodeQuarantined)
		testenv.Eventually(t, time.Minute, func() error {
			if _, err := q.Extend(t.Context(), lease.ID, 0); err != nil && !errors.Is(err, lockcore.ErrNoQuorum) {
				t.Fatalf("the lease was lost: %v", err)
			}
			if s := q.Status(); s.Voting < 3 {
				return fmt.Errorf("%d vote", s.Voting)
			}
			return nil
		})
	}
	if _, err := q.Lease(t.Context(), lease.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Acquire(t.Context(), lockcore.Request{Resource: "long"}); !errors.Is(err, lockcore.ErrHeld) {
		t.Fatal(err)
	}
}

// A frozen minority delays nothing after its first time limit.
func TestFrozenMinorityCostsNothing(t *testing.T) {
	t.Parallel()
	tenSeconds := func(c *sets.Config) { c.MaxTTL = 10 * time.Second }
	healthy, q := startQuorum(t, 3, tenSeconds), startQuorum(t, 5, tenSeconds)
	healthy.awaitVoting(t, 3)
	q.awaitVoting(t, 5)
	q.servers[0].Freeze()
	q.servers[1].Freeze()
	q.awaitState(t, 0, lockcore.NodeUnreachable)
	q.awaitState(t, 1, lockcore.NodeUnreachable)
	var without, with []time.Duration // in turns, so that both meet the same load
	for i := range 60 {
		without = append(without, healthy.timeOfCycle(t, fmt.Sprint("r", i)))
		with = append(with, q.timeOfCycle(t, fmt.Sprint("r", i)))
	}
	slices.Sort(without)
	slices.Sort(with)
	if frozen, calm := with[len(with)/2], without[len(without)/2]; frozen > 3*calm+2*time.Millisecond {
		t.Fatalf("a cycle takes %s with two nodes of five frozen, %s with three nodes", frozen, calm)
	}
}

func (q *quorum) timeOfCycle(t *testing.T, resource string) time.Duration {
	t.Helper()
	began := time.Now()
	q.cycle(t, resource, 0)
	return time.Since(began)
}

// An acquire that one server sent may reach a node after the release of its lease, which another server sent.
func TestLateVoteIsRetracted(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 3, longTTL)
	other := joinQuorum(t, q.servers, longTTL)
	q.awaitVoting(t, 3)
	other.awaitVoting(t, 3)
	last := q.servers[2].Client()
	for i := range 10 { // on a busy machine it may come later than it is looked for
		resource := fmt.Sprint("r", i)
		lease := q.take(t, resource)
		var vote string
		testenv.Eventually(t, 5*time.Second, func() (err error) {
			vote, err = last.GetDel(t.Context(), "l:"+resource).Result()
			return err
		})
		other.give(t, lease)
		last.Set(t.Context(), "l:"+resource, vote, 30*time.Second)
		for began := time.Now(); time.Since(began) < 2*time.Second; {
			if last.Exists(t.Context(), "l:"+resource).Val() == 0 {
				return
			}
		}
	}
	t.Fatal("late votes stay")
}

// A node whose memory is full refuses new locks and releases those that it has.
func TestFullNodeReleases(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 3, longTTL)
	q.awaitVoting(t, 3)
	lease := q.take(t, "r")
	for _, s := range q.servers {
		if err := s.Client().ConfigSet(t.Context(), "maxmemory", "100kb").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := q.Acquire(t.Context(), lockcore.Request{Resource: "new"}); err == nil {
		t.Error("a full node took a lock")
	}
	if err := q.Release(t.Context(), lease.ID); err != nil {
		t.Error("release:", err)
	}
	if state, err := q.Inspect(t.Context(), "r"); err != nil || state.Held {
		t.Errorf("after its release: %+v, %v", state, err)
	}
}

// A request that is cancelled at any moment leaves no lock behind.
func TestCancelledRequestLeavesNothing(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 3, func(c *sets.Config) { c.MaxTTL = time.Minute })
	q.awaitVoting(t, 3)
	for i := range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*10)*time.Microsecond)
		lease, err := q.Acquire(ctx, lockcore.Request{Resource: fmt.Sprint("r", i)})
		cancel()
		if err == nil {
			err = q.Release(t.Context(), lease.ID)
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, lockcore.ErrNoQuorum) { // which a busy machine may be
			t.Fatal(err)
		}
	}
	for _, s := range q.servers {
		testenv.Eventually(t, 5*time.Second, func() error {
			locks, err := s.Client().Keys(t.Context(), "l:*").Result()
			if err != nil || len(locks) > 0 {
				return fmt.Errorf("%d locks left: %v, %w", len(locks), locks, err)
			}
			return nil
		})
	}
}

// Resources that are no longer used leave nothing once their counters' time to
// live is over.
func TestMemoryFollowsResourcesInUse(t *testing.T) {
	t.Parallel()
	servers := testenv.StartRedisN(t, 1)
	q := joinQuorumWith(t, servers, redisnode.Options{CounterTTL: 500 * time.Millisecond}, nil)
	q.awaitVoting(t, 1)
	var last fencing.Token
	for i := range 2000 {
		last = q.cycle(t, fmt.Sprint("once/", i), last) // high is node-wide: rises over resources too
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		size, err := servers[0].Client().DBSize(t.Context()).Result()
		if err != nil || size > 2 { // the state, and this server's session
			return fmt.Errorf("%d keys left: %w", size, err)
		}
		return nil
	})
	q.cycle(t, "once/0", last)
}

// An extend that comes after a release or a break finds its lease lost, and does not restore it.
func TestEndedLeaseStaysEnded(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 3, longTTL)
	q.awaitVoting(t, 3)
	ends := map[string]func(lockcore.Lease) error{
		"release": func(l lockcore.Lease) error { return q.Release(t.Context(), l.ID) },
		"break":   func(l lockcore.Lease) error { return q.Break(t.Context(), l.Resource, 0) },
	}
	for name, end := range ends {
		lease := q.take(t, name)
		if err := end(lease); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := q.Extend(t.Context(), lease.ID, 0); !errors.Is(err, lockcore.ErrNotHeld) {
			t.Fatalf("extend after %s: %v", name, err)
		}
		if s, err := q.Inspect(t.Context(), name); err != nil || s.Held {
			t.Fatalf("%+v, %v", s, err)
		}
		q.takeNext(t, name, lease.Token)
	}
}
