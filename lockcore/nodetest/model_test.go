package nodetest_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
)

// A clock that is set back makes a row of a queue valid again, although its ticket has been enqueued elsewhere since.
// The node still works.
func TestQueueOfAClockThatIsSetBack(t *testing.T) {
	m := nodetest.NewModel(nodetest.ModelOptions{})
	epoch := admitted(t, m)
	ticket := node.Ticket{ID: "t", Server: "s", Arrival: 5, Holder: "h"}
	enqueue := node.Op{Kind: node.OpEnqueue, Epoch: epoch, Resource: "r", Ticket: ticket}
	m.Apply(enqueue)
	m.JumpClock(time.Hour)
	enqueue.Ticket.Arrival = 7
	m.Apply(enqueue)
	m.JumpClock(-time.Hour)
	m.Apply(node.Op{Kind: node.OpDequeue, Resource: "r", Ticket: ticket})
	m.Apply(node.Op{Kind: node.OpHeartbeat, Ticket: ticket, TTL: time.Second})
	m.JumpClock(2 * time.Second) // its server is dead
	wantOutcome(t, m, acquire(epoch, "r", "L1"), node.Granted)
}

// A ticket keeps its place, whatever arrival later operations name for it, and does not block itself.
func TestTicketIsNotBeforeItself(t *testing.T) {
	m := nodetest.NewModel(nodetest.ModelOptions{})
	epoch := admitted(t, m)
	ticket := node.Ticket{ID: "t", Server: "s", Arrival: 40}
	m.Apply(node.Op{Kind: node.OpEnqueue, Epoch: epoch, Resource: "r", Ticket: ticket})
	op := acquire(epoch, "r", "L1")
	op.Ticket, op.Ticket.Arrival = ticket, 90
	wantOutcome(t, m, op, node.Granted)
}

// A node that has become a replica cannot remove the tickets of dead servers.
func TestQueueOfAReplica(t *testing.T) {
	m := nodetest.NewModel(nodetest.ModelOptions{})
	epoch := admitted(t, m)
	wantOutcome(t, m, acquire(epoch, "r", "L1"), node.Granted)
	m.Apply(node.Op{Kind: node.OpEnqueue, Epoch: epoch, Resource: "r", Ticket: node.Ticket{ID: "t", Server: "s", Arrival: 5}})
	m.JumpClock(5 * time.Second) // its server is dead
	m.SetReplica(true)
	m.Apply(node.Op{Kind: node.OpRelease, Resource: "r", Owner: "L1", Token: fencing.MaxToken}) // returns
}

func TestModel(t *testing.T) {
	nodetest.Run(t, func(t *testing.T, wanted nodetest.Wanted) nodetest.Harness {
		return model(t, nodetest.ModelOptions{CounterTTL: wanted.CounterTTL})
	})
}

func model(tb testing.TB, opts nodetest.ModelOptions) nodetest.Harness {
	tb.Helper()
	var now atomic.Int64
	opts.Now = func() time.Time { return time.Unix(1_800_000_000, now.Load()) }
	m := nodetest.NewModel(opts)
	return nodetest.Harness{
		Node:    m,
		Advance: func(d time.Duration) { now.Add(int64(d)) },
		Restart: func() { m.Restart(true) },
		Wipe:    m.Wipe,
		Spoil:   nodetest.SpoilRow(tb, m.Store),
	}
}

func TestModelInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := nodetest.NewModel(nodetest.ModelOptions{})
		epoch := admitted(t, m)
		wantOutcome(t, m, acquire(epoch, "a", "L1"), node.Granted)
		time.Sleep(time.Minute - time.Nanosecond)
		wantOutcome(t, m, acquire(epoch, "a", "L2"), node.Held)
		time.Sleep(time.Nanosecond)
		wantOutcome(t, m, acquire(epoch, "a", "L2"), node.Granted)
	})
}

func TestModelFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(*nodetest.Model)
		want  node.Outcome // of another's acquire then
	}{
		"none":                 {func(*nodetest.Model) {}, node.Held},
		"restart":              {func(m *nodetest.Model) { m.Restart(true) }, node.NotAdmitted},
		"restart without data": {func(m *nodetest.Model) { m.Restart(false) }, node.NotAdmitted},
		"wipe":                 {(*nodetest.Model).Wipe, node.NotAdmitted},
		"demoted":              {func(m *nodetest.Model) { m.SetReplica(true) }, node.NotAdmitted},
		"promoted again":       {func(m *nodetest.Model) { m.SetReplica(true); m.SetReplica(false) }, node.NotAdmitted},
		"clock forward":        {func(m *nodetest.Model) { m.JumpClock(time.Minute) }, node.Granted},
		"clock back":           {func(m *nodetest.Model) { m.JumpClock(-time.Minute) }, node.Held},
		"expired early":        {func(m *nodetest.Model) { m.ExpireNow("a") }, node.Granted},
		"another expired":      {func(m *nodetest.Model) { m.ExpireNow("b") }, node.Held},
	} {
		t.Run(name, func(t *testing.T) {
			m := nodetest.NewModel(nodetest.ModelOptions{})
			epoch := admitted(t, m)
			wantOutcome(t, m, acquire(epoch, "a", "L1"), node.Granted)
			c.fault(m)
			wantOutcome(t, m, acquire(epoch, "a", "L2"), c.want)
		})
	}
}

func TestModelRollsBack(t *testing.T) {
	m := nodetest.NewModel(nodetest.ModelOptions{})
	epoch := admitted(t, m)
	before := m.Snapshot()
	wantOutcome(t, m, acquire(epoch, "a", "L1"), node.Granted)
	m.Restore(before) // no server can tell
	wantOutcome(t, m, acquire(epoch, "a", "L2"), node.Granted)
	m.Restore(before) // a snapshot is not used up
	wantOutcome(t, m, acquire(epoch, "a", "L3"), node.Granted)
	m.Restart(true)
	m.Restore(before)
	wantOutcome(t, m, acquire(epoch, "a", "L4"), node.NotAdmitted)
}

func TestModelDropsCounters(t *testing.T) {
	m := nodetest.NewModel(nodetest.ModelOptions{})
	epoch := admitted(t, m)
	wantOutcome(t, m, acquire(epoch, "a", "L1"), node.Granted)
	wantOutcome(t, m, acquire(epoch, "b", "L1"), node.Granted)
	m.DropCounter("a")
	counters, err := m.Counters(t.Context(), epoch, []string{"a", "b"})
	if err != nil || counters[0] != counters[1] {
		t.Errorf("%v, %v", counters, err)
	}
}

func admitted(t *testing.T, m *nodetest.Model) node.Epoch {
	t.Helper()
	cluster := node.Cluster{Nodes: 3, Hash: "c0ffee"}
	m.Join(cluster)
	seen, err := m.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a := node.Admission{Incarnation: seen.Incarnation, Epoch: 5, Bootstrapped: 5, Cluster: cluster, Floor: 1000, MaxTTL: time.Minute}
	if err := errors.Join(m.Stage(t.Context(), a), m.Admit(t.Context(), a)); err != nil {
		t.Fatal(err)
	}
	return a.Epoch
}

func acquire(epoch node.Epoch, resource, lease string) node.Op {
	return node.Op{Kind: node.OpAcquire, Epoch: epoch, Resource: resource, Owner: lease, TTL: time.Minute}
}

func wantOutcome(t *testing.T, m *nodetest.Model, op node.Op, want node.Outcome) {
	t.Helper()
	if r := m.Apply(op); r.Outcome != want {
		t.Errorf("%+v, want outcome %d", r, want)
	}
}
