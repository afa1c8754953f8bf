package sets_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// A request that is cancelled leaves nothing, whatever state it had reached and whichever server gets the cancel. The
// next caller gets everything at once, and the key may be used for another request.
func TestCancelLeavesNothing(t *testing.T) {
	requests := map[string]lockcore.Request{
		"one":          {Resource: "r"},
		"several":      {Resources: []string{"p", "q", "r"}},
		"a slot":       {Resource: "r", Slots: 1},
		"one of slots": {Resource: "r", Slots: 3},
		"min hold":     {Resource: "r", MinHold: 5 * time.Second},
	}
	states := map[string]func(a *arena, req lockcore.Request){
		"it never arrived": func(*arena, lockcore.Request) {},
		"it was granted":   func(a *arena, req lockcore.Request) { a.must(a.servers[0], req) },
		"it was granted after a wait": func(a *arena, req lockcore.Request) {
			inTheWay := a.take(req)
			granted := make(chan lockcore.Lease, 1)
			go func() { granted <- a.must(a.servers[0], req) }()
			time.Sleep(time.Second)
			a.free(inTheWay)
			<-granted
		},
		"it waits": func(a *arena, req lockcore.Request) {
			inTheWay := a.take(req)
			go func() { _, _ = a.servers[0].Acquire(a.Context(), req) }()
			time.Sleep(time.Second)
			time.AfterFunc(500*time.Millisecond, func() { a.free(inTheWay) })
		},
		"it waits at two servers": func(a *arena, req lockcore.Request) {
			inTheWay := a.take(req)
			for _, server := range a.servers {
				go func() { _, _ = server.Acquire(a.Context(), req) }()
				time.Sleep(time.Second)
			}
			for _, server := range a.servers { // the one that is not told continues until its caller hangs up
				_, _ = server.Cancel(a.Context(), req)
			}
			a.free(inTheWay)
		},
		"a poll ended": func(a *arena, req lockcore.Request) {
			inTheWay := a.take(req)
			req.Poll = time.Second
			if _, err := a.servers[0].Acquire(a.Context(), req); !errors.Is(err, lockcore.ErrWaitTimeout) {
				a.Fatal(err)
			}
			a.free(inTheWay)
		},
		"its server was lost": func(a *arena, req lockcore.Request) {
			inTheWay := a.take(req)
			go func() { _, _ = a.servers[0].Acquire(a.Context(), req) }()
			time.Sleep(time.Second)
			for _, w := range a.wires[0] {
				w.set(func() { w.down, w.dark = true, true })
			}
			for _, lease := range inTheWay {
				if err := a.servers[1].Release(a.Context(), lease.ID); err != nil {
					a.Fatal(err)
				}
			}
		},
	}
	for kind, req := range requests {
		for state, bring := range states {
			for server := range 2 {
				if server == 0 && state == "its server was lost" || server == 1 && state == "it waits" {
					continue // it cannot be asked; it is not told that the request waits elsewhere
				}
				t.Run(fmt.Sprintf("%s, %s, cancelled at server %d", kind, state, server), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						a, stop := newArena(t, 3, 2)
						defer func() { stop(); time.Sleep(time.Minute) }()
						req := req
						req.TTL, req.Wait, req.IdempotencyKey = 20*time.Second, 30*time.Second, "key"
						bring(a, req)
						if _, err := a.servers[server].Cancel(t.Context(), req); err != nil {
							t.Fatal(err)
						}
						time.Sleep(time.Second) // until what is in the way goes, too
						next := req
						next.IdempotencyKey, next.Wait = "", 5*time.Second
						for range max(1, req.Slots) {
							began := time.Now()
							lease := a.must(a.servers[1], next)
							if took := time.Since(began); took > soon {
								t.Errorf("the next caller got %+v after %s", lease, took)
							}
						}
						other := lockcore.Request{Resource: "another", IdempotencyKey: "key"}
						a.must(a.servers[1], other)
					})
				})
			}
		}
	}
}

// take acquires what a request asks for.
func (a *arena) take(req lockcore.Request) (held []lockcore.Lease) {
	req.IdempotencyKey, req.Wait, req.MinHold, req.TTL = "", 0, 0, time.Minute
	if len(req.Resources) > 0 { // the last one, so that the others are taken before
		req.Resource, req.Resources = req.Resources[len(req.Resources)-1], nil
	}
	for range max(1, req.Slots) {
		held = append(held, a.must(a.servers[1], req))
	}
	return held
}

func (a *arena) free(held []lockcore.Lease) {
	for _, lease := range held {
		if err := a.servers[1].Release(a.Context(), lease.ID); err != nil {
			a.Error(err)
		}
	}
}

// Find returns the lease of a key. If the key has none, it acquires nothing.
func TestFind(t *testing.T) {
	for name, req := range map[string]lockcore.Request{
		"one":     {Resource: "r"},
		"several": {Resources: []string{"p", "q"}},
		"a slot":  {Resource: "r", Slots: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, stop := newArena(t, 3, 2)
				defer func() { stop(); time.Sleep(time.Minute) }()
				req.TTL, req.IdempotencyKey = 20*time.Second, "key"
				if lease, err := a.servers[0].Find(t.Context(), req); !errors.Is(err, lockcore.ErrNotHeld) {
					t.Fatalf("%+v, %v", lease, err)
				}
				lease := a.must(a.servers[0], req)
				again, err := a.servers[1].Find(t.Context(), req)
				if err != nil || again.ID != lease.ID || !again.Existing {
					t.Errorf("found %+v, %v, want %+v", again, err, lease)
				}
				if err := a.servers[1].Release(t.Context(), again.ID); err != nil {
					t.Fatal(err)
				}
				if lease, err := a.servers[0].Find(t.Context(), req); !errors.Is(err, lockcore.ErrNotHeld) {
					t.Errorf("after its release: %+v, %v", lease, err)
				}
				other := a.must(a.servers[1], lockcore.Request{Resource: "r", TTL: 20 * time.Second})
				if lease, err := a.servers[0].Find(t.Context(), req); !errors.Is(err, lockcore.ErrNotHeld) {
					t.Errorf("another has it: %+v, %v", lease, err)
				}
				if err := a.servers[1].Release(t.Context(), other.ID); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// Node 2 counts ahead, and has a vote of a failed request of the key. A cancel releases up to that vote's grant,
// reaches no other node in time, and gets 503. The key is used again, and gets a smaller token on the other nodes.
// Then the release of the cancel arrives there.
func TestFailedCancelLeavesTheNextLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 2)
		defer func() { stop(); time.Sleep(time.Minute) }() // for what is on its way
		holder, other := a.servers[0], a.servers[1]
		req := lockcore.Request{Resource: "r", TTL: 30 * time.Second, IdempotencyKey: "k"}
		ahead := a.must(holder, lockcore.Request{Resource: "r", TTL: time.Second}).Token + 10
		time.Sleep(2 * time.Second)
		a.models[1].Apply(node.Op{Kind: node.OpRelease, Epoch: node.Epoch(holder.Status().Nodes[1].Epoch), Resource: "r", Owner: "stray", Token: ahead})
		late := func(server, n int, kinds ...node.OpKind) {
			w := a.wires[server][n-1]
			w.set(func() {
				w.hook = func(op node.Op) time.Duration {
					if slices.Contains(kinds, op.Kind) {
						return 5 * time.Second
					}
					return 0
				}
			})
		}
		reach := func(nodes ...bool) {
			for i, yes := range nodes {
				w := a.wires[0][i]
				w.set(func() { w.down, w.dark = !yes, !yes })
			}
		}
		late(0, 2, node.OpRetract)
		reach(false, true, false)
		if _, err := holder.Acquire(t.Context(), req); !errors.Is(err, lockcore.ErrNoQuorum) {
			t.Fatal(err)
		}
		late(1, 1, node.OpRead, node.OpRelease)
		late(1, 3, node.OpRelease)
		if _, err := other.Cancel(t.Context(), req); !errors.Is(err, lockcore.ErrNoQuorum) {
			t.Fatalf("the cancel came to %v", err)
		}
		reach(true, false, true)
		next := a.must(holder, req)
		if next.Token > ahead {
			t.Fatalf("the next lease has token %d, and the cancel %d", next.Token, ahead)
		}
		time.Sleep(8 * time.Second)
		if _, err := holder.Extend(t.Context(), next.ID, 0); err != nil {
			t.Errorf("the lease has its lock on %v: %v", a.on("r"), err)
		}
	})
}
