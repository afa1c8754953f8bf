package sets_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// A release meets another's vote on the node that its quorum needs. Unless it takes
// the counter past the token there too, the holder of a lease that was broken
// extends it once that vote is gone: on that node, where the lock is made again, and
// on one that the release has not reached.
func TestBrokenWhereAnothersVoteStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 3)
		defer func() { stop(); time.Sleep(time.Minute) }() // for what is on its way
		holder, other, operator := a.servers[0], a.servers[1], a.servers[2]
		a.cut(true, 3) // node 3 knows less than was given
		for range 3 {
			a.must(holder, lockcore.Request{Resource: "r", TTL: time.Second})
			time.Sleep(2 * time.Second)
		}
		lease := a.must(holder, lockcore.Request{Resource: "r", TTL: 30 * time.Second})
		a.cut(false, 3)
		a.wires[1][2].delay(node.OpRetract) // the vote of an attempt that failed stays for a moment
		if _, err := other.Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 30 * time.Second}); !errors.Is(err, lockcore.ErrHeld) {
			t.Fatal(err)
		}
		if on := a.on("r"); len(on) != 3 {
			t.Fatalf("the vote is not there: %v", on)
		}
		a.wires[2][1].delay(node.OpRelease, node.OpBreak) // the break reaches node 2 late
		if err := operator.Break(t.Context(), "r", 0); err != nil {
			t.Fatal(err)
		}
		if _, err := holder.Extend(t.Context(), lease.ID, 30*time.Second); !errors.Is(err, lockcore.ErrNotHeld) {
			t.Errorf("a broken lease was extended: %v", err)
		}
	})
}

// Rule 28. A break does not hear node 1, which has the lease, and finds another's vote
// on node 3 alone. The release of that vote reaches nodes 1 and 3. Node 1 answers that
// the vote is not there, and node 2 can make the lease's lock again: the lease is not
// broken yet.
func TestBreakLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer func() { stop(); time.Sleep(time.Minute) }() // for what is on its way
		holder, operator := a.servers[0], a.servers[1]
		a.cut(true, 2) // node 2 knows less than was given
		for range 3 {
			a.must(holder, lockcore.Request{Resource: "r", TTL: time.Second})
			time.Sleep(2 * time.Second)
		}
		lease := a.must(holder, lockcore.Request{Resource: "r", TTL: 60 * time.Second})
		a.cut(false, 2)
		third := a.models[2]
		owner, epoch := third.Apply(node.Op{Kind: node.OpRead, Resource: "r"}).Owner, node.Epoch(operator.Status().Nodes[2].Epoch)
		third.Apply(node.Op{Kind: node.OpRelease, Epoch: epoch, Resource: "r", Owner: owner, Token: lease.Token}) // of an earlier break
		stray := third.Apply(node.Op{Kind: node.OpAcquire, Epoch: epoch, Resource: "r", Owner: "stray", TTL: time.Minute})
		if stray.Outcome != node.Granted {
			t.Fatalf("%+v", stray)
		}
		a.wires[1][0].delay(node.OpRead)
		a.wires[1][1].delay(node.OpRelease, node.OpBreak)
		broken := operator.Break(t.Context(), "r", 0)
		time.Sleep(time.Millisecond)
		_, extended := holder.Extend(t.Context(), lease.ID, 60*time.Second)
		if broken == nil && extended == nil {
			t.Fatal("a broken lease was extended")
		}
		for _, w := range a.wires[1] {
			w.set(func() { w.hook = nil })
		}
		if err := operator.Break(t.Context(), "r", 0); err != nil && !errors.Is(err, lockcore.ErrNotHeld) {
			t.Fatal(err) // ErrNotHeld: what the first break left on its way ended the lease
		}
		if _, err := holder.Extend(t.Context(), lease.ID, 60*time.Second); !errors.Is(err, lockcore.ErrNotHeld) {
			t.Errorf("a broken lease was extended: %v", err)
		}
	})
}

// Rule 28. A break hears nothing of node 1, which has the lease, and nothing of it on
// node 3, from where it was released. All that it finds is another's vote on node 2, whose
// counter is far behind: with the grant of that vote as the token it would leave node 2
// such that the lease's lock can be made again there.
func TestBreakReadsTheCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer func() { stop(); time.Sleep(time.Minute) }() // for what is on its way
		holder, operator := a.servers[0], a.servers[1]
		a.cut(true, 2)
		for range 3 {
			a.must(holder, lockcore.Request{Resource: "r", TTL: time.Second})
			time.Sleep(2 * time.Second)
		}
		lease := a.must(holder, lockcore.Request{Resource: "r", TTL: 60 * time.Second})
		a.cut(false, 2)
		second, third := a.models[1], a.models[2]
		owner, epoch := third.Apply(node.Op{Kind: node.OpRead, Resource: "r"}).Owner, node.Epoch(operator.Status().Nodes[1].Epoch)
		third.Apply(node.Op{Kind: node.OpRelease, Epoch: epoch, Resource: "r", Owner: owner, Token: lease.Token}) // of an earlier break
		stray := second.Apply(node.Op{Kind: node.OpAcquire, Epoch: epoch, Resource: "r", Owner: "stray", TTL: time.Minute})
		if stray.Outcome != node.Granted || stray.Grant+1 > lease.Token {
			t.Fatalf("%+v, the lease has %d", stray, lease.Token)
		}
		a.wires[1][0].set(func() { a.wires[1][0].down = true })
		if err := operator.Break(t.Context(), "r", 0); err != nil && !errors.Is(err, lockcore.ErrNotHeld) {
			t.Fatal(err) // ErrNotHeld: a vote alone is no lease
		}
		if _, err := holder.Extend(t.Context(), lease.ID, 60*time.Second); err == nil {
			t.Error("a broken lease was extended")
		}
	})
}

// A retry under a key finds a lease of several that is about to end, part by part:
// what was left of the first when it was found has passed when the last is found.
func TestBundleFoundAtItsEnd(t *testing.T) {
	for wait := 970 * time.Millisecond; wait < 1010*time.Millisecond; wait += 500 * time.Microsecond {
		synctest.Test(t, func(t *testing.T) {
			a, stop := newArena(t, 3, 1)
			defer stop()
			req := lockcore.Request{Resources: []string{"a", "b", "c"}, TTL: time.Second, IdempotencyKey: "k"}
			a.must(a.servers[0], req)
			time.Sleep(wait)
			if again, err := a.servers[0].Acquire(t.Context(), req); err == nil && again.Validity <= 0 {
				t.Errorf("%s after it was taken, a lease is valid for %s", wait, again.Validity)
			}
			time.Sleep(10 * time.Second) // until every answer is there
		})
	}
}

// A lease is released and taken again under its idempotency key. The late release
// of the first deletes a vote that the second counts on.
func TestKeyUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer stop()
		l := a.servers[0]
		req := lockcore.Request{Resource: "r", TTL: 30 * time.Second, IdempotencyKey: "k"}
		a.cut(true, 3) // a minority is unreachable
		first := a.must(l, req)
		a.cut(false, 3)
		if err := l.Release(t.Context(), first.ID); err != nil {
			t.Fatal(err)
		}
		a.cut(true, 1) // another minority
		second := a.must(l, req)
		at := time.Now()
		time.Sleep(300 * time.Millisecond)
		a.cut(false, 1)
		third, err := a.servers[1].Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 30 * time.Second})
		if err == nil {
			t.Errorf("token %d is valid for another %s, and token %d was granted for %s",
				second.Token, second.Validity-time.Since(at), third.Token, third.Validity)
		}
	})
}

// A lease is won on two nodes; the third has its vote, and the answer does not arrive. An extend
// counts that vote while another node is unreachable. The late retraction of the vote would let
// another lease in if it took a vote that is not above the token.
func TestRetractionOfAVoteThatAnExtendCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer stop()
		l := a.servers[0]
		retracted := false
		a.wires[0][2].set(func() {
			a.wires[0][2].lose = node.OpAcquire
			a.wires[0][2].hook = func(op node.Op) time.Duration {
				if op.Kind == node.OpRetract && !retracted {
					retracted = true
					return 9 * time.Second
				}
				return 0
			}
		})
		lease := a.must(l, lockcore.Request{Resource: "r", TTL: 10 * time.Second, IdempotencyKey: "k"})
		a.cut(true, 1)
		time.Sleep(8 * time.Second)
		more, err := l.Extend(t.Context(), lease.ID, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		time.Sleep(3 * time.Second) // the lock on node 1 ends, and the retraction arrives
		a.wires[0][2].set(func() {
			if !retracted {
				t.Error("nothing was retracted")
			}
		})
		a.cut(false, 1)
		third, err := a.servers[1].Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 30 * time.Second})
		if err == nil {
			t.Errorf("token %d is valid for another %s, and token %d was granted", lease.Token, more.Validity-time.Since(at), third.Token)
		}
	})
}

// A bundle fails, since its second part is held. The client repeats it at once with the same key.
// The late retraction of the failed attempt deletes a vote of the bundle that was then granted.
func TestBundleRetriedUnderItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer stop()
		l := a.servers[0]
		other := a.must(a.servers[1], lockcore.Request{Resource: "b", TTL: 30 * time.Second})
		req := lockcore.Request{Resources: []string{"a", "b"}, TTL: 30 * time.Second, IdempotencyKey: "k"}
		// node 3 gets the acquire of "a" only after its retraction: a slow connection
		a.cut(true, 3)
		a.wires[0][2].set(func() {
			a.wires[0][2].down = true
			a.wires[0][2].hook = func(op node.Op) time.Duration {
				if op.Kind == node.OpRetract {
					a.wires[0][2].down = false
				}
				return 0
			}
		})
		_, err := l.Acquire(t.Context(), req)
		if !errors.Is(err, lockcore.ErrHeld) {
			t.Fatal(err)
		}
		a.wires[0][2].set(func() { a.wires[0][2].hook = nil })
		a.cut(false, 3)
		if err := a.servers[1].Release(t.Context(), other.ID); err != nil {
			t.Fatal(err)
		}
		a.cut(true, 1)
		bundle := a.must(l, req)
		at := time.Now()
		time.Sleep(300 * time.Millisecond)
		a.cut(false, 1)
		third, err := a.servers[1].Acquire(t.Context(), lockcore.Request{Resource: "a", TTL: 30 * time.Second})
		if err == nil {
			t.Errorf("the bundle is valid for another %s, and a was granted with token %d for %s",
				bundle.Validity-time.Since(at), third.Token, third.Validity)
		}
	})
}

// No fault: two attempts at a bundle under one key. The caller of the first goes away, and the
// first drops a part that the second counts on, though both are noted on it.
func TestTwoAttemptsAtABundle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer stop()
		other := a.must(a.servers[1], lockcore.Request{Resource: "b", TTL: 30 * time.Second})
		req := lockcore.Request{Resources: []string{"a", "b"}, TTL: 30 * time.Second, IdempotencyKey: "k", Wait: 20 * time.Second}
		ctx, gone := context.WithCancel(t.Context())
		firstDone := make(chan error, 1)
		go func() { _, err := a.servers[0].Acquire(ctx, req); firstDone <- err }()
		time.Sleep(time.Second)
		// The client repeats its request at the other server; the first one notices a
		// moment later that its caller went away.
		type res struct {
			lease lockcore.Lease
			err   error
			at    time.Time
		}
		second := make(chan res, 1)
		go func() {
			lease, err := a.servers[1].Acquire(t.Context(), req)
			second <- res{lease, err, time.Now()}
		}()
		time.Sleep(100 * time.Millisecond)
		gone()
		if err := <-firstDone; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		time.Sleep(20 * time.Millisecond)
		if err := a.servers[1].Release(t.Context(), other.ID); err != nil {
			t.Fatal(err)
		}
		got := <-second
		if got.err != nil {
			t.Fatal(got.err)
		}
		third, err := a.servers[0].Acquire(t.Context(), lockcore.Request{Resource: "a", TTL: 30 * time.Second})
		if err == nil {
			t.Errorf("the bundle %+v is valid for another %s, and a was granted with token %d for %s",
				got.lease.Parts, got.lease.Validity-time.Since(got.at), third.Token, third.Validity)
		}
	})
}

// A bundle under a key whose part was broken while it waited begins again under the same lease
// value. The cleanup of the extend that noticed continues for MaxTTL on the node that was only
// slower than the others, and deletes the new vote there.
func TestBundleBegunAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer stop()
		b := a.must(a.servers[1], lockcore.Request{Resource: "b", TTL: 30 * time.Second})
		slow := a.wires[0][2]
		slow.set(func() { // node 3 is 5 ms slower for extends
			slow.hook = func(op node.Op) time.Duration {
				if op.Kind == node.OpExtend {
					return 5 * time.Millisecond
				}
				return 0
			}
		})
		req := lockcore.Request{Resources: []string{"a", "b"}, TTL: 10 * time.Second, IdempotencyKey: "k", Wait: 25 * time.Second}
		type res struct {
			lease lockcore.Lease
			err   error
			at    time.Time
		}
		done := make(chan res, 1)
		go func() {
			lease, err := a.servers[0].Acquire(t.Context(), req)
			done <- res{lease, err, time.Now()}
		}()
		time.Sleep(time.Second)
		if err := a.servers[1].Break(t.Context(), "a", 0); err != nil {
			t.Fatal(err)
		}
		fails := a.wires[0][0]
		fails.set(func() { // node 1 becomes unreachable right after the keeper's extend
			fails.hook = func(op node.Op) time.Duration {
				if op.Kind == node.OpExtend {
					fails.down = true
				}
				return 0
			}
		})
		for len(a.on("a")) == 0 {
			time.Sleep(time.Millisecond)
		}
		if err := a.servers[1].Release(t.Context(), b.ID); err != nil { // and b becomes free
			t.Fatal(err)
		}
		got := <-done
		if got.err != nil {
			t.Fatal(got.err)
		}
		time.Sleep(500 * time.Millisecond)
		fails.set(func() { fails.hook, fails.down = nil, false })
		third, err := a.servers[1].Acquire(t.Context(), lockcore.Request{Resource: "a", TTL: 30 * time.Second})
		if err == nil {
			t.Errorf("the bundle is valid for another %s, and a was granted with token %d", got.lease.Validity-time.Since(got.at), third.Token)
		}
	})
}

// A bundle's wait ends while its keeper's extend is under way to slow nodes. The release that
// follows names no token, so the late extend makes the part's lock again, and nothing releases it.
func TestDroppedPartStaysFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer stop()
		a.must(a.servers[1], lockcore.Request{Resource: "b", TTL: 50 * time.Second})
		extended := make(chan struct{}, 8)
		for _, w := range a.wires[0][1:] {
			w.set(func() {
				w.hook = func(op node.Op) time.Duration {
					if op.Kind == node.OpExtend {
						extended <- struct{}{}
						return 30 * time.Millisecond // within the node's time limit
					}
					return 0
				}
			})
		}
		ctx, gone := context.WithCancel(t.Context())
		defer gone()
		done := make(chan error, 1)
		go func() {
			_, err := a.servers[0].Acquire(ctx, lockcore.Request{Resources: []string{"a", "b"}, TTL: 30 * time.Second, Wait: 40 * time.Second})
			done <- err
		}()
		<-extended
		gone()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		time.Sleep(25 * time.Second)
		if _, err := a.servers[1].Acquire(t.Context(), lockcore.Request{Resource: "a", TTL: time.Second}); err != nil {
			t.Errorf("a is free for 25 s, and yet: %v", err)
		}
	})
}

// As 3, on the embedded default: one node, one server.
func TestTwoAttemptsAtABundleOnOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 1, 1)
		defer stop()
		l := a.servers[0]
		other := a.must(l, lockcore.Request{Resource: "b", TTL: 30 * time.Second})
		req := lockcore.Request{Resources: []string{"a", "b"}, TTL: 30 * time.Second, IdempotencyKey: "k", Wait: 20 * time.Second}
		ctx, gone := context.WithCancel(t.Context())
		firstDone := make(chan error, 1)
		go func() { _, err := l.Acquire(ctx, req); firstDone <- err }()
		time.Sleep(time.Second)
		second := make(chan lockcore.Lease, 1)
		go func() {
			lease, err := l.Acquire(t.Context(), req)
			if err != nil {
				t.Error(err)
			}
			second <- lease
		}()
		time.Sleep(500 * time.Millisecond)
		gone()
		<-firstDone
		if err := l.Release(t.Context(), other.ID); err != nil {
			t.Fatal(err)
		}
		got := <-second
		third, err := l.Acquire(t.Context(), lockcore.Request{Resource: "a", TTL: 30 * time.Second})
		if err == nil {
			t.Errorf("%+v valid for %s, and a was granted with token %d", got.Parts, got.Validity, third.Token)
		}
	})
}

// Two servers with different MaxTTL. All nodes lose what they kept (or: two of three, while the
// third cannot be reached). The server with the smaller MaxTTL bootstraps the cluster again after its own.
func TestServersWithOtherMaxTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var models []*nodetest.Model
		for i := range 3 {
			models = append(models, nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprintf("n%d", i+1)}))
		}
		start := func(maxTTL time.Duration) *locker {
			var nodes []node.Node
			for _, m := range models {
				nodes = append(nodes, &wire{Model: m})
			}
			return running(t, sets.Config{MaxTTL: maxTTL, DefaultTTL: 5 * time.Second}, nodes)
		}
		long, short := start(60*time.Second), start(10*time.Second)
		time.Sleep(2 * time.Minute)
		lease, err := long.Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 60 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		for _, m := range models {
			m.Restart(false)
		}
		time.Sleep(15 * time.Second)
		third, err := short.Acquire(t.Context(), lockcore.Request{Resource: "r"})
		if err == nil {
			t.Errorf("token %d is valid for another %s, and token %d was granted", lease.Token, lease.Validity-time.Since(at), third.Token)
		}
	})
}

// The cluster was bootstrapped by a server whose clock was an hour ahead; the clock was then set right.
// Every node loses its data. The servers bootstrap again, in an epoch that is smaller than the one
// they still know themselves, and never ask for votes in it.
func TestEpochAfterAClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var models []*nodetest.Model
		var nodes []node.Node
		for i := range 3 {
			m := nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprintf("n%d", i+1)})
			models, nodes = append(models, m), append(nodes, &wire{Model: m})
		}
		// What a bootstrap by a clock that is an hour ahead leaves.
		for _, m := range models {
			ahead := time.Now().Add(time.Hour)
			seen, _ := m.Observe(t.Context())
			a := node.Admission{Incarnation: seen.Incarnation, Epoch: node.Epoch(ahead.UnixMilli() << 10), Cluster: membership.ClusterOf(nodes), Floor: node.FloorAt(ahead), MaxTTL: 10 * time.Second}
			a.Bootstrapped, a.Secrets = a.Epoch, node.NewSecrets(a.Epoch, [node.MinSecretBytes]byte{1})
			if err := errors.Join(m.Stage(t.Context(), a), m.Admit(t.Context(), a)); err != nil {
				t.Fatal(err)
			}
		}
		l := running(t, sets.Config{MaxTTL: 10 * time.Second, DefaultTTL: 5 * time.Second}, nodes)
		time.Sleep(5 * time.Second)
		if _, err := l.Acquire(t.Context(), lockcore.Request{Resource: "r"}); err != nil {
			t.Fatal(err)
		}
		for _, m := range models {
			m.Restart(false)
		}
		time.Sleep(30 * time.Minute)
		s := l.Status()
		_, err := l.Acquire(t.Context(), lockcore.Request{Resource: "r"})
		if err != nil {
			t.Errorf("half an hour later, ready=%v with %d nodes voting: %v", s.Ready, s.Voting, err)
		}
	})
}

// liar returns once an epoch of the year 2100.
type liar struct {
	*wire
	lie bool
}

func (n *liar) Submit(op *node.Op, i int, sink node.Sink) {
	if n.lie && op.Kind == node.OpAcquire {
		n.lie = false
		sink.Deliver(i, node.Reply{Outcome: node.StaleEpoch, Epoch: node.Epoch(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli() << 10)})
		return
	}
	n.wire.Submit(op, i, sink)
}

// One broken answer of one node of three (GUARANTEES: "a broken node cannot break the service
// while a quorum is sound (… epochs beyond what a cluster can have reached are not believed)").
func TestOneFalseEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var nodes []node.Node
		var bad *liar
		for i := range 3 {
			bad = &liar{wire: &wire{Model: nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprintf("n%d", i+1)})}}
			nodes = append(nodes, bad)
		}
		t.Cleanup(func() { time.Sleep(time.Second) }) // for what is on its way
		l := running(t, sets.Config{New: true}, nodes)
		time.Sleep(5 * time.Second)
		if _, err := l.Acquire(t.Context(), lockcore.Request{Resource: "r1"}); err != nil {
			t.Fatal(err)
		}
		bad.lie = true
		_, err := l.Acquire(t.Context(), lockcore.Request{Resource: "r1"}) // is held
		if err == nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if _, err = l.Acquire(t.Context(), lockcore.Request{Resource: "r3"}); err != nil {
			t.Errorf("an hour later, ready=%v: %v", l.Status().Ready, err)
		}
	})
}
