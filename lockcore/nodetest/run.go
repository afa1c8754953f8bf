package nodetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Harness is a node under test with what the suite may do to it.
type Harness struct {
	// Node has not been used, and holds nothing unless it bootstrapped itself.
	Node node.Node
	// Advance lets the node's clock go on by d. nil: the suite waits for a real
	// clock, and asks for short times only.
	Advance func(d time.Duration)
	// Restart gives the node another incarnation, with the data it had; nil if
	// its incarnation never changes.
	Restart func()
	// Wipe takes the node's data away and leaves its incarnation; nil if
	// nothing but its owner can do that.
	Wipe func()
	// CounterTTL is how long the node keeps a counter. The test that waits for its
	// end needs at most three seconds, or Advance; the others end in less.
	CounterTTL time.Duration
}

// suite is one test's node, admitted unless the test does that itself.
type suite struct {
	*testing.T
	Harness
	epoch   node.Epoch
	high    fencing.Token // at the time of its admission
	cluster node.Cluster
	server  string
}

const (
	// longTTL is one that does not end during a test; maxTTL the longest allowed.
	longTTL = time.Minute
	maxTTL  = 2 * time.Minute
	// shortTTL is one that a test waits for.
	shortTTL = 80 * time.Millisecond
	// patience is how long a real node may take for anything.
	patience = 10 * time.Second
	// slack is how much later than expected a real clock may be read.
	slack = 20 * time.Second
)

// Run tests a node through its interface alone. open is called once for every
// test and cleans up behind itself with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	t.Helper()
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"vote", voteTests()},
		{"key", keyTests()},
		{"line", lineTests()},
		{"name", nameTests()},
		{"forgery", forgeryTests()},
		{"read", readTests()},
		{"admission", admissionTests()},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, test := range group.tests {
				t.Run(test.name, func(t *testing.T) { test.run(newSuite(t, open(t))) })
			}
		})
	}
}

type test struct {
	name string
	run  func(*suite)
}

func newSuite(t *testing.T, h Harness) *suite {
	s := &suite{T: t, Harness: h, cluster: node.Cluster{Nodes: 1, Hash: "c0ffee"}, server: "server-1"}
	s.Node.Join(s.cluster)
	return s
}

// admit founds a cluster on the node, with tokens above floor.
func (s *suite) admit(floor fencing.Token) {
	s.Helper()
	a := s.bootstrap(floor)
	s.must(s.Node.Stage(s.Context(), a))
	s.must(s.Node.Admit(s.Context(), a))
	s.epoch = a.Epoch
	s.high = s.observe().Marks.HighWater
}

// bootstrap is an admission that any node takes: it has either none, or was
// away during this one.
func (s *suite) bootstrap(floor fencing.Token) node.Admission {
	s.Helper()
	seen := s.observe()
	epoch := max(seen.Epoch, seen.Staged) + 10
	a := node.Admission{
		Incarnation: seen.Incarnation, Note: seen.Note, Epoch: epoch, Bootstrapped: epoch, Cluster: s.cluster, Floor: floor, MaxTTL: maxTTL,
	}
	if seen.Admitted {
		a.Note = node.MissedNote(seen.Epoch)
	}
	return a
}

func (s *suite) observe() node.Observation {
	s.Helper()
	seen, err := s.Node.Observe(s.Context())
	s.must(err)
	return seen
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// do submits an operation and waits for its reply. An operation without an epoch
// is given the node's own.
func (s *suite) do(op node.Op) node.Reply {
	s.Helper()
	if op.Epoch == 0 {
		op.Epoch = s.epoch
	}
	reply, err := Submit(s.Node, op)
	s.must(err)
	return reply
}

// Submit submits an operation and waits for its reply, within a bound.
func Submit(n node.Voter, op node.Op) (node.Reply, error) {
	const index = 7
	replies := make(sink, 2)
	n.Submit(&op, index, replies)
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case d := <-replies:
		if d.index != index {
			return d.reply, fmt.Errorf("reply under index %d, want %d", d.index, index)
		}
		return d.reply, nil
	case <-timeout.C:
		return node.Reply{}, fmt.Errorf("no reply to operation %d within %s", op.Kind, patience)
	}
}

type delivery struct {
	index int
	reply node.Reply
}

// sink has room for a second reply, so that one would be seen and not block.
type sink chan delivery

// Deliver takes a reply.
func (s sink) Deliver(index int, reply node.Reply) { s <- delivery{index, reply} }

// want does an operation and compares the reply.
func (s *suite) want(op node.Op, want node.Reply) {
	s.Helper()
	got := s.do(op)
	if diff := Diff(op.Kind, got, want); diff != "" {
		s.Fatalf("%+v:\n got %+v\nwant %+v\n%s", op, got, want, diff)
	}
}

// Diff tells how two replies to one kind of operation differ, "" if they do
// not. Fields that mean nothing in such a reply are not compared, the text of
// errors is not, and what is left of a lock may be less than wanted, since time
// goes on.
func Diff(kind node.OpKind, got, want node.Reply) string {
	got, want = meaningful(kind, got), meaningful(kind, want)
	left := got.Remaining
	if left > want.Remaining || left < want.Remaining-slack {
		return fmt.Sprintf("Remaining is %s, want %s", left, want.Remaining)
	}
	got.Remaining, want.Remaining = 0, 0
	g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want)
	if g != w {
		return fmt.Sprintf(" got %s\nwant %s", g, w)
	}
	return ""
}

// meaningful keeps what node.Reply documents for the outcome.
func meaningful(kind node.OpKind, r node.Reply) node.Reply {
	m := node.Reply{Outcome: r.Outcome}
	reading := kind == node.OpRead
	switch r.Outcome {
	case node.Failed:
		m.Sent = r.Sent
	case node.StaleEpoch, node.NotAdmitted:
		m.Epoch = r.Epoch
	case node.Granted:
		m = r
		if kind == node.OpConfirm || kind == node.OpRelease {
			m.Meta = ""
		}
	case node.Held:
		m = r
	}
	if reading {
		m.Waiting, m.Queue = r.Waiting, r.Queue
	}
	if len(m.Queue) == 0 {
		m.Queue = nil
	}
	m.Err = nil
	return m
}

// passes lets d pass and then waits until done. It is given d's end by the
// test, so a real clock is only waited for.
func (s *suite) passes(d time.Duration, done func() error) {
	s.Helper()
	if s.Advance != nil {
		s.Advance(d)
	}
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := done()
		if err == nil {
			return
		}
		if s.Advance != nil || time.Now().After(deadline) {
			s.Fatalf("%s later: %v", d, err)
		}
		<-tick.C
	}
}

// expires waits for the end of a lock that was given ttl.
func (s *suite) expires(resource string, ttl time.Duration) {
	s.Helper()
	s.passes(ttl, func() error {
		if r := s.do(read(resource)); r.Outcome != node.NotHeld {
			return fmt.Errorf("%q is locked still: %+v", resource, r)
		}
		return nil
	})
}

// counter reads one effective counter.
func (s *suite) counter(resource string) fencing.Token {
	s.Helper()
	counters, err := s.Node.Counters(s.Context(), s.epoch, []string{resource})
	s.must(err)
	if len(counters) != 1 {
		s.Fatalf("%d counters, want 1", len(counters))
	}
	return counters[0]
}

// Operations.

func acquire(resource, owner string) node.Op {
	return node.Op{Kind: node.OpAcquire, Resource: resource, Owner: owner, TTL: longTTL, Meta: "meta of " + owner}
}

func confirm(resource, owner string, token fencing.Token) node.Op {
	return node.Op{Kind: node.OpConfirm, Resource: resource, Owner: owner, Token: token}
}

func extend(resource, owner string, token fencing.Token, ttl time.Duration) node.Op {
	return node.Op{Kind: node.OpExtend, Resource: resource, Owner: owner, Token: token, TTL: ttl}
}

func release(resource, owner string, token fencing.Token) node.Op {
	return node.Op{Kind: node.OpRelease, Resource: resource, Owner: owner, Token: token}
}

func releaseAfter(resource, owner string, token fencing.Token, left time.Duration) node.Op {
	return node.Op{Kind: node.OpReleaseAfter, Resource: resource, Owner: owner, Token: token, TTL: left}
}

// retract retracts the vote of an attempt; "" is one without an idempotency key.
func retract(resource, owner, attempt string) node.Op {
	return node.Op{Kind: node.OpRetract, Resource: resource, Owner: owner, Attempt: attempt}
}

func read(resource string) node.Op { return node.Op{Kind: node.OpRead, Resource: resource} }

// Replies.

func granted(grant fencing.Token, left time.Duration) node.Reply {
	return node.Reply{Outcome: node.Granted, Grant: grant, Remaining: left}
}

func held(grant fencing.Token, owner string, ttl time.Duration) node.Reply {
	return node.Reply{
		Outcome: node.Held, Grant: grant, Remaining: ttl, TTL: ttl, Owner: owner, Meta: "meta of " + owner,
	}
}

func locked(grant fencing.Token, owner string, ttl time.Duration) node.Reply {
	r := held(grant, owner, ttl)
	r.Outcome = node.Granted
	return r
}

func outcome(o node.Outcome) node.Reply { return node.Reply{Outcome: o} }
