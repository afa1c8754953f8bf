package nodetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// Harness is a node under test, with what the suite may do to it.
type Harness struct {
	// Node has not been used. It holds nothing, unless it bootstrapped itself.
	Node node.Node
	// Advance moves the node's clock forward by d. nil: the suite waits for a real
	// clock, for short times only.
	Advance func(d time.Duration)
	// Restart gives the node another incarnation with the same data; nil if its
	// incarnation never changes.
	Restart func()
	// Wipe deletes the node's data and leaves its incarnation; nil if no other program
	// can do that.
	Wipe func()
	// Spoil makes the record of a resource's lock one that cannot be read.
	Spoil func(resource string)
}

// SpoilRow is the Spoil of a replica on the store.
func SpoilRow(tb testing.TB, store replica.Store) func(resource string) {
	tb.Helper()
	return func(resource string) {
		err := store.Update(tb.Context(), func(tx replica.Tx) error {
			tx.Put(replica.LockKey(resource), []byte("no lock"), longTTL)
			return nil
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// suite is one test of one node.
type suite struct {
	*testing.T
	Harness
	epoch      node.Epoch    // of its admission
	generation int64         // of the last map that was installed
	base       fencing.Token // the high-water mark then: the first grant is base+1
	cluster    node.Cluster
	began      time.Time
	batches    bool // each operation is done in a batch with strangers'
}

const (
	longTTL  = time.Minute           // does not pass during a test
	counters = time.Hour             // how long a node keeps a counter,
	briefly  = 3 * time.Second       // in a test that waits for its end: longer than it needs until it looks
	maxTTL   = 2 * time.Minute       // the longest allowed
	shortTTL = 80 * time.Millisecond // a test waits for its end
	patience = 10 * time.Second      // how long a real node may take for anything
	rounding = 20 * time.Second      // of times in fixtures: how much later a real clock may be read
	apart    = 2 * time.Second       // how far two readings of real clocks may be apart that are of one moment
)

// Run tests a node through its interface alone: each scenario by itself, and with every
// operation in a batch with strangers'. It calls open once for every test, for a
// node that keeps counters for so long; open cleans up with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T, counterTTL time.Duration) Harness) {
	t.Helper()
	runAll(t, open, false)
	t.Run("in batches", func(t *testing.T) { runAll(t, open, true) })
}

func runAll(t *testing.T, open func(t *testing.T, counterTTL time.Duration) Harness, batches bool) {
	t.Helper()
	for _, group := range []struct {
		name       string
		admitted   bool
		counterTTL time.Duration
		tests      []test
	}{
		{"lock", true, counters, lockTests()},
		{"counter", true, briefly, []test{{"an expired counter reads as the high-water mark", counterExpires}}},
		{"key", true, counters, keyTests()},
		{"queue", true, counters, queueTests()},
		{"name", true, counters, nameTests()},
		{"forgery", true, counters, forgeryTests()},
		{"read", true, counters, readTests()},
		{"map", true, counters, mapTests()},
		{"admission", false, counters, admissionTests()},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, test := range group.tests {
				t.Run(test.name, func(t *testing.T) {
					s := &suite{
						T: t, Harness: open(t, group.counterTTL), cluster: node.Cluster{Nodes: 1, Hash: "c0ffee"}, batches: batches,
						began: time.Now(),
					}
					s.Node.Join(s.cluster)
					if group.admitted {
						s.admit(100)
					}
					test.run(s)
				})
			}
		})
	}
}

type test struct {
	name string
	run  func(*suite)
}

// admit bootstraps a cluster on the node, with tokens above floor.
func (s *suite) admit(floor fencing.Token) {
	s.Helper()
	s.install(s.bootstrap(floor))
	s.base = s.observe().Marks.HighWater
}

// install stages and admits.
func (s *suite) install(a node.Admission) {
	s.Helper()
	s.must(s.Node.Stage(s.Context(), a))
	s.must(s.Node.Admit(s.Context(), a))
	s.epoch = a.Epoch
}

// bootstrap is an admission that the node takes: either it is not admitted, or it
// missed this bootstrap.
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

// observe is the node's state without what is for people alone.
func (s *suite) observe() node.Observation {
	s.Helper()
	seen, err := s.Node.Observe(s.Context())
	s.must(err)
	seen.Version, seen.Role = "", ""
	return seen
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *suite) wantErr(want, got error) {
	s.Helper()
	if !errors.Is(got, want) {
		s.Errorf("error %v, want %v", got, want)
	}
}

// wantObserved compares the node's state.
func (s *suite) wantObserved(want node.Observation) {
	s.Helper()
	if seen := s.observe(); seen != want {
		s.Errorf("observed %+v, want %+v", seen, want)
	}
}

func (s *suite) wantNote(want string) {
	s.Helper()
	if seen := s.observe(); seen.Note != want {
		s.Errorf("the note is %q, want %q", seen.Note, want)
	}
}

func (s *suite) wantHighWater(want fencing.Token) {
	s.Helper()
	if got := s.observe().Marks.HighWater; got != want {
		s.Errorf("the high-water mark is %d, want %d", got, want)
	}
}

func (s *suite) wantMaxTTL(want time.Duration) {
	s.Helper()
	if got := s.observe().Marks.MaxTTL; got != want {
		s.Errorf("the longest TTL in use is %s, want %s", got, want)
	}
}

// wantCounter compares an effective counter.
func (s *suite) wantCounter(resource string, want fencing.Token) {
	s.Helper()
	if got := s.counter(resource); got != want {
		s.Errorf("the counter of %q is %d, want %d", resource, got, want)
	}
}

// do submits an operation and waits for its reply. An operation without an epoch gets
// the suite's.
func (s *suite) do(op node.Op) node.Reply {
	s.Helper()
	if op.Epoch == 0 {
		op.Epoch = s.epoch
	}
	if s.batches {
		return s.amid(op)
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
	if diff := s.diff(op.Kind, got, want); diff != "" {
		s.Fatalf("%+v:\n got %+v\nwant %+v\n%s", op, got, want, diff)
	}
}

// passed is how much time may have passed on the node's clock since the test began.
func (s *suite) passed() time.Duration {
	if s.Advance != nil {
		return 0
	}
	return time.Since(s.began) + apart
}

func (s *suite) diff(kind node.OpKind, got, want node.Reply) string {
	s.Helper()
	return Diff(kind, got, want, s.passed())
}

// Diff says how two replies to one kind of operation differ, "" if they do not. It
// compares the fields that node.Reply documents for the outcome, and no texts of errors.
// Remaining may be less than wanted by the time that has passed.
func Diff(kind node.OpKind, got, want node.Reply, passed time.Duration) string {
	got, want = meaningful(kind, got), meaningful(kind, want)
	left := got.Remaining
	if left > want.Remaining || left < want.Remaining-passed {
		return fmt.Sprintf("Remaining is %s, want %s", left, want.Remaining)
	}
	got.Remaining, want.Remaining = 0, 0
	g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want)
	if g != w {
		return fmt.Sprintf(" got %s\nwant %s", g, w)
	}
	return ""
}

// meaningful keeps the fields that node.Reply documents for the outcome.
func meaningful(kind node.OpKind, r node.Reply) node.Reply {
	m := node.Reply{Outcome: r.Outcome}
	switch r.Outcome {
	case node.Failed:
		m.Sent = r.Sent
	case node.StaleEpoch, node.NotAdmitted:
		m.Epoch = r.Epoch
	case node.Granted, node.Held:
		m = r
		if kind == node.OpConfirm || kind == node.OpRelease {
			m.Meta = ""
		}
	}
	if kind == node.OpRead {
		m.Waiting, m.Queue = r.Waiting, r.Queue
	}
	if len(m.Queue) == 0 {
		m.Queue = nil
	}
	m.Err = nil
	return m
}

// afterwards lets d pass and waits until done returns nil.
func (s *suite) afterwards(d time.Duration, done func() error) {
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

// expires waits until a lock with this TTL has expired.
func (s *suite) expires(resource string, ttl time.Duration) {
	s.Helper()
	s.afterwards(ttl, func() error {
		if r := s.do(read(resource)); r.Outcome != node.NotHeld {
			return fmt.Errorf("%q is still locked: %+v", resource, r)
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

func acquireFor(resource, owner string, ttl time.Duration) node.Op {
	op := acquire(resource, owner)
	op.TTL = ttl
	return op
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

func breakUpTo(resource string, token fencing.Token) node.Op {
	return node.Op{Kind: node.OpBreak, Resource: resource, Token: token}
}

// retract retracts the vote of an attempt; "" is one without an idempotency key.
func retract(resource, owner, attempt string) node.Op {
	return retractAbove(resource, owner, attempt, 0)
}

func retractAbove(resource, owner, attempt string, above fencing.Token) node.Op {
	return node.Op{Kind: node.OpRetract, Resource: resource, Owner: owner, Attempt: attempt, Above: above}
}

func read(resource string) node.Op { return node.Op{Kind: node.OpRead, Resource: resource} }

// Replies. Locks have the metadata that acquire gives them, unless withMeta says otherwise.

func granted(grant fencing.Token, left time.Duration) node.Reply {
	return node.Reply{Outcome: node.Granted, Grant: grant, Remaining: left}
}

func recreated(grant fencing.Token) node.Reply {
	return node.Reply{Outcome: node.Granted, Grant: grant, Remaining: longTTL, Recreated: true}
}

func existing(grant fencing.Token, owner string) node.Reply {
	return node.Reply{
		Outcome: node.Granted, Grant: grant, Remaining: longTTL, TTL: longTTL, Existing: true, Meta: "meta of " + owner,
	}
}

func held(grant fencing.Token, owner string, ttl time.Duration) node.Reply {
	return node.Reply{Outcome: node.Held, Grant: grant, Remaining: ttl, TTL: ttl, Owner: owner, Meta: "meta of " + owner}
}

func locked(grant fencing.Token, owner string, ttl time.Duration) node.Reply {
	r := held(grant, owner, ttl)
	r.Outcome = node.Granted
	return r
}

func withMeta(r node.Reply, meta string) node.Reply {
	r.Meta = meta
	return r
}

func outcome(o node.Outcome) node.Reply { return node.Reply{Outcome: o} }
