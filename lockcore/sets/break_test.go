package sets_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// A break of a token reaches its nodes late, when the resource has another lease. It leaves that lease alone, with
// and without an idempotency key.
func TestLateBreakLeavesTheNextLease(t *testing.T) {
	for _, key := range []string{"", "k"} {
		synctest.Test(t, func(t *testing.T) {
			a, stop := newArena(t, 3, 2)
			defer func() { stop(); time.Sleep(time.Minute) }() // for what is on its way
			holder, operator := a.servers[0], a.servers[1]
			req := lockcore.Request{Resource: "r", TTL: 30 * time.Second, IdempotencyKey: key}
			first := a.must(holder, req)
			for _, w := range a.wires[1] {
				w.delay(node.OpBreak)
			}
			broken := make(chan error, 1)
			go func() { broken <- operator.Break(t.Context(), "r", first.Token) }()
			time.Sleep(10 * time.Millisecond) // the operator has looked, and its break is on its way
			if err := holder.Release(t.Context(), first.ID); err != nil {
				t.Fatal(err)
			}
			next := a.must(holder, req)
			if err := <-broken; !errors.Is(err, lockcore.ErrNoQuorum) {
				t.Errorf("the break came to %v", err)
			}
			time.Sleep(10 * time.Second) // the break has arrived, again and again
			if on := a.on("r"); len(on) != 3 {
				t.Errorf("key %q: the next lease has its lock on %v only", key, on)
			}
			if _, err := holder.Extend(t.Context(), next.ID, 0); err != nil {
				t.Errorf("key %q: %v", key, err)
			}
		})
	}
}

// Rule 28. Node 2 counts ahead, because it has a vote of an attempt that failed. So a break of any lease takes its
// token from there. The break reaches no other node in time, and gets 503. The next lease is granted on the other
// nodes with a smaller token. Then the break arrives there, and must leave that lease.
func TestFailedBreakLeavesTheNextLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer func() { stop(); time.Sleep(time.Minute) }() // for what is on its way
		holder, operator := a.servers[0], a.servers[1]
		stray := node.Op{Kind: node.OpRelease, Epoch: node.Epoch(operator.Status().Nodes[1].Epoch), Resource: "r", Owner: "stray", Token: a.must(holder, lockcore.Request{Resource: "r", TTL: time.Second}).Token + 10}
		time.Sleep(2 * time.Second)
		a.models[1].Apply(stray)
		stray.Kind, stray.TTL = node.OpAcquire, 30*time.Second
		if vote := a.models[1].Apply(stray); vote.Outcome != node.Granted {
			t.Fatalf("%+v", vote)
		}
		for _, n := range []int{1, 3} {
			w := a.wires[1][n-1]
			w.set(func() {
				w.hook = func(op node.Op) time.Duration {
					if op.Kind != node.OpRead {
						return 5 * time.Second
					}
					return 0
				}
			})
		}
		if err := operator.Break(t.Context(), "r", 0); !errors.Is(err, lockcore.ErrNoQuorum) {
			t.Fatalf("the break came to %v", err)
		}
		second := a.wires[0][1]
		second.set(func() { second.down, second.dark = true, true })
		next := a.must(holder, lockcore.Request{Resource: "r", TTL: 30 * time.Second})
		if next.Token > stray.Token {
			t.Fatalf("the next lease has token %d, and the break %d", next.Token, stray.Token)
		}
		time.Sleep(10 * time.Second) // the break has arrived, again and again
		if _, err := holder.Extend(t.Context(), next.ID, 0); err != nil {
			t.Errorf("the lease has its lock on %v: %v", a.on("r"), err)
		}
	})
}

// Rule 28. Node 3 has missed many leases, and the break of the last of them. It grants the next lease a number far
// below its token, and misses the confirm. The holder's extend counts that lock. The break arrives then, and must
// leave the lock.
func TestLateBreakLeavesWhatALeaseCountsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 3)
		defer func() { stop(); time.Sleep(time.Minute) }() // for what is on its way
		holder, operator, other := a.servers[0], a.servers[1], a.servers[2]
		cut := func(server, n int, off bool) {
			w := a.wires[server][n-1]
			w.set(func() { w.down, w.dark = off, off })
		}
		a.cut(true, 3)
		for range 3 {
			a.must(holder, lockcore.Request{Resource: "r", TTL: time.Second})
			time.Sleep(2 * time.Second)
		}
		broken := a.must(holder, lockcore.Request{Resource: "r", TTL: 30 * time.Second})
		if err := operator.Break(t.Context(), "r", broken.Token); err != nil {
			t.Fatal(err)
		}

		cut(0, 3, false)
		third := a.wires[0][2]
		third.set(func() {
			third.hook = func(op node.Op) time.Duration {
				if op.Kind == node.OpConfirm {
					return 40 * time.Second
				}
				return 0
			}
		})
		lease := a.must(holder, lockcore.Request{Resource: "r", TTL: 3 * time.Second})
		time.Sleep(10 * time.Millisecond)
		if vote := a.models[2].Apply(node.Op{Kind: node.OpRead, Resource: "r"}); vote.Outcome != node.Granted || vote.Grant >= broken.Token {
			t.Fatalf("node 3 has %+v, and %d was broken", vote, broken.Token)
		}
		cut(0, 2, true)
		held, err := holder.Extend(t.Context(), lease.ID, 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		cut(1, 3, false)
		cut(2, 3, false)
		time.Sleep(10 * time.Second) // the lock on node 2 has expired, and the break has arrived at node 3
		if next, err := other.Acquire(t.Context(), lockcore.Request{Resource: "r", TTL: 5 * time.Second}); err == nil {
			t.Errorf("token %d is valid for another %s, and token %d was granted", held.Token, held.Validity-time.Since(at), next.Token)
		}
	})
}

// A break ends every lease up to its token. So a break of a token that no lease has, or of an earlier one, is refused
// after a look: it would end the present lease.
func TestBreakOfAnotherToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer stop()
		lease := a.must(a.servers[0], lockcore.Request{Resource: "r", TTL: 30 * time.Second, Holder: "h"})
		for _, down := range [][]int{nil, {1}} { // the lease may be held as far as two nodes show
			a.cut(true, down...)
			for _, token := range []fencing.Token{lease.Token - 1, lease.Token + 1, lease.Token + 1000} {
				err := a.servers[1].Break(t.Context(), "r", token)
				if other, ok := errors.AsType[*lockcore.OtherLeaseError](err); !ok || other.Token != lease.Token || other.Holder != "h" || other.Named != token {
					t.Errorf("break of %d beside %d: %v", token, lease.Token, err)
				}
			}
			a.cut(false, down...)
		}
		if _, err := a.servers[0].Extend(t.Context(), lease.ID, 0); err != nil {
			t.Error(err)
		}
		if err := a.servers[1].Break(t.Context(), "r", lease.Token); err != nil {
			t.Error(err)
		}
	})
}

// A failing attempt has a vote with a larger token than the lease. A break of that token would end the lease,
// although no caller has the token.
func TestBreakOfAVoteBesideALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer stop()
		a.cut(true, 3)
		lease := a.must(a.servers[0], lockcore.Request{Resource: "r", TTL: 30 * time.Second})
		a.cut(false, 3)
		epoch := node.Epoch(a.servers[1].Status().Nodes[2].Epoch)
		stray := node.Op{Kind: node.OpRelease, Epoch: epoch, Resource: "r", Owner: "stray", Token: lease.Token + 10}
		a.models[2].Apply(stray)
		stray.Kind, stray.TTL = node.OpAcquire, time.Minute
		vote := a.models[2].Apply(stray)
		if vote.Outcome != node.Granted || vote.Grant <= lease.Token {
			t.Fatalf("%+v", vote)
		}
		a.cut(true, 1)
		err := a.servers[1].Break(t.Context(), "r", vote.Grant)
		if other, ok := errors.AsType[*lockcore.OtherLeaseError](err); !ok || other.Token != lease.Token {
			t.Errorf("beside a lease that may be live: %v", err)
		}
		a.cut(false, 1)
		if err := a.servers[1].Break(t.Context(), "r", lease.Token); err != nil {
			t.Error(err)
		}
		if err := a.servers[1].Break(t.Context(), "r", vote.Grant); !errors.Is(err, lockcore.ErrNotHeld) {
			t.Errorf("of a vote: %v", err)
		}
	})
}
