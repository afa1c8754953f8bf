package sets_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// poll asks again and again under one key until it is granted.
func (a *arena) poll(server int, every time.Duration, req lockcore.Request) lockcore.Lease {
	a.Helper()
	req.Wait, req.Poll, req.TTL = 5*time.Minute, every, 10*time.Second
	for {
		lease, err := a.servers[server].Acquire(a.Context(), req)
		if err == nil {
			return lease
		}
		timeout, ok := errors.AsType[*lockcore.WaitTimeoutError](err)
		if !ok || !timeout.Kept || timeout.Waited > every+time.Second {
			a.Errorf("a poll ended with %v", err)
			return lease
		}
		time.Sleep(time.Second) // on the way back and there again
		server = (server + 1) % len(a.servers)
	}
}

// A wait that consists of several requests under one key is passed by no later request, even if the lock becomes free
// between two of them, and whatever servers they reach.
func TestPollsKeepThePlace(t *testing.T) {
	for name, servers := range map[string]int{"one server": 1, "another server each time": 3} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, stop := newArena(t, 3, servers)
				defer func() { stop(); time.Sleep(time.Minute) }()
				held := a.must(a.servers[0], lockcore.Request{Resource: "r", TTL: 60 * time.Second})
				granted := make(chan string, 2)
				go func() {
					lease := a.poll(0, 3*time.Second, lockcore.Request{Resource: "r", IdempotencyKey: "key"})
					granted <- "first"
					_ = a.servers[0].Release(t.Context(), lease.ID)
				}()
				time.Sleep(time.Second)
				go func() {
					lease := a.must(a.servers[0], lockcore.Request{Resource: "r", TTL: 10 * time.Second, Wait: 5 * time.Minute})
					granted <- "second"
					_ = a.servers[0].Release(t.Context(), lease.ID)
				}()
				time.Sleep(2*time.Second + 500*time.Millisecond) // the first poll has ended, and the next one has not begun
				if err := a.servers[0].Release(t.Context(), held.ID); err != nil {
					t.Fatal(err)
				}
				if one, two := <-granted, <-granted; one != "first" || two != "second" {
					t.Errorf("granted to %s, then to %s", one, two)
				}
			})
		})
	}
}

// The same holds for several resources: the parts that a request has stay taken between its polls.
func TestPollsKeepAPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer func() { stop(); time.Sleep(time.Minute) }()
		held := a.must(a.servers[0], lockcore.Request{Resource: "b", TTL: 60 * time.Second})
		got := make(chan lockcore.Lease, 1)
		go func() {
			got <- a.poll(0, 3*time.Second, lockcore.Request{Resources: []string{"a", "b"}, IdempotencyKey: "key"})
		}()
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if _, err := a.servers[1].Acquire(t.Context(), lockcore.Request{Resource: "a"}); !errors.Is(err, lockcore.ErrHeld) {
				t.Fatalf("the part that was taken: %v", err)
			}
		}
		if err := a.servers[0].Release(t.Context(), held.ID); err != nil {
			t.Fatal(err)
		}
		if err := a.servers[0].Release(t.Context(), (<-got).ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		a.must(a.servers[1], lockcore.Request{Resource: "a"})
	})
}

// If a request for several resources does not come again, the part that it has is free a moment later, and not only
// after its TTL.
func TestAbandonedPollDropsItsPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 1)
		defer func() { stop(); time.Sleep(time.Minute) }()
		a.must(a.servers[0], lockcore.Request{Resource: "b", TTL: 60 * time.Second})
		_, err := a.servers[0].Acquire(t.Context(), lockcore.Request{
			Resources: []string{"a", "b"}, IdempotencyKey: "key", TTL: 60 * time.Second, Wait: time.Minute, Poll: time.Second,
		})
		if !errors.Is(err, lockcore.ErrWaitTimeout) {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		a.must(a.servers[0], lockcore.Request{Resource: "a"})
	})
}

// A lost quorum ends waiting requests within seconds, and they may come again. If nodes are seen to be gone, that
// includes requests that are not first, which ask the nodes nothing while they wait. Otherwise it ends the first one,
// which asks. A short loss ends none.
func TestLostQuorumEndsWaits(t *testing.T) {
	for name, c := range map[string]struct {
		lose    func(w *wire, lost bool)
		waiters int
	}{
		"the nodes are down":   {func(w *wire, lost bool) { w.down, w.dark = lost, lost }, 3},
		"the nodes are silent": {func(w *wire, lost bool) { w.deaf, w.dark = lost, lost }, 3},
		"votes fail":           {func(w *wire, lost bool) { w.down = lost }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, stop := newArena(t, 3, 1)
				defer func() { stop(); time.Sleep(time.Minute) }()
				lose := func(lost bool) {
					for _, w := range a.wires[0][:2] {
						w.set(func() { c.lose(w, lost) })
					}
				}
				held := a.must(a.servers[0], lockcore.Request{Resource: "r", TTL: 60 * time.Second})
				ended := make(chan error, c.waiters)
				for range c.waiters {
					go func() {
						_, err := a.servers[0].Acquire(t.Context(), lockcore.Request{Resource: "r", Wait: 10 * time.Minute})
						ended <- err
					}()
					time.Sleep(time.Second)
				}
				lose(true)
				time.Sleep(4 * time.Second)
				lose(false)
				time.Sleep(15 * time.Second)
				if len(ended) > 0 {
					t.Fatalf("after a loss of four seconds: %v", <-ended)
				}
				lose(true)
				began := time.Now()
				_ = a.servers[0].Release(t.Context(), held.ID) // the first one asks
				for range c.waiters {
					err := <-ended
					lost, ok := errors.AsType[*lockcore.QuorumError](err)
					if took := time.Since(began); !ok || lost.Resource != "r" || took > 8*time.Second {
						t.Errorf("%v after %s", err, took)
					}
				}
			})
		})
	}
}

// A server that has just started does not know the cluster's secret yet, and so not the place of a key. It sends the
// request to another server, and does not give it a place at the end.
func TestWaitBeforeTheSecretIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 1)
		defer func() { stop(); time.Sleep(time.Minute) }()
		fresh, err := newLocker(sets.Config{MaxTTL: time.Minute, NodeTimeout: 50 * time.Millisecond}, []node.Node{a.wires[0][0], a.wires[0][1], a.wires[0][2]})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = fresh.Acquire(t.Context(), lockcore.Request{Resource: "r", Wait: time.Minute, IdempotencyKey: "key"})
		if took := time.Since(began); !errors.Is(err, lockcore.ErrNoQuorum) || took > time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
}
