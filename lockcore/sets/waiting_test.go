package sets_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// The metric shows that waiting requests lack a quorum while they wait, and not only when they give up minutes later.
// That holds if the first of them rests because it found the resource held, and if every node is up but replies too
// late.
func TestWaitersWithoutQuorum(t *testing.T) {
	for name, c := range map[string]struct {
		held, ready bool
		starve, end func(a *arena)
	}{
		"a majority is cut off while the resource is held": {
			held:   true,
			starve: func(a *arena) { a.cut(true, 1, 2) },
			end:    func(a *arena) { a.cut(false, 1, 2) },
		},
		"a majority answers acquires too late": {
			ready: true,
			starve: func(a *arena) {
				for _, w := range a.wires[0][:2] {
					w.delay(node.OpAcquire)
				}
			},
			end: func(a *arena) {
				for _, w := range a.wires[0][:2] {
					w.set(func() { w.hook = nil })
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, stop := newArena(t, 3, 1)
				defer func() { stop(); time.Sleep(time.Minute) }()
				server := a.servers[0]
				var held lockcore.Lease
				if c.held {
					held = a.must(server, lockcore.Request{Resource: "r", TTL: time.Minute})
				} else {
					c.starve(a)
				}
				granted := make(chan lockcore.Lease, 3)
				for range 3 {
					go func() {
						lease := a.must(server, lockcore.Request{Resource: "r", TTL: 10 * time.Second, Wait: 5 * time.Minute})
						granted <- lease
						_ = server.Release(t.Context(), lease.ID)
					}()
				}
				time.Sleep(time.Second)
				if c.held {
					time.Sleep(20 * time.Second) // the first tries again after up to 15 s
					wantWaiting(t, "while the resource is held", server, redlock.Waiting{Requests: 3})
					c.starve(a)
					time.Sleep(time.Second)
				}
				wantWaiting(t, "without a quorum", server, redlock.Waiting{Requests: 3, NoQuorum: 3})
				if server.Status().Ready != c.ready {
					t.Errorf("ready: %t", server.Status().Ready)
				}
				c.end(a)
				time.Sleep(time.Second)
				if c.held {
					wantWaiting(t, "with a quorum again", server, redlock.Waiting{Requests: 3})
					if err := server.Release(t.Context(), held.ID); err != nil {
						t.Fatal(err)
					}
				}
				for range 3 {
					<-granted
				}
				synctest.Wait()
				wantWaiting(t, "at the end", server, redlock.Waiting{})
			})
		})
	}
}

func wantWaiting(t *testing.T, when string, l *locker, want redlock.Waiting) {
	t.Helper()
	if got := l.Waiting()[0]; got != want {
		t.Errorf("%s: %+v, want %+v", when, got, want)
	}
}

// A request that may wait asks for a free resource without a ticket, and gets one only when it has to wait. A request
// behind it at the same server has a ticket from the start.
func TestAFreeResourceNeedsNoTicket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, 3, 1)
		defer func() { stop(); time.Sleep(time.Minute) }()
		var without, with int // a ticket: acquires that reached a node
		a.wires[0][0].hook = func(op node.Op) time.Duration {
			switch {
			case op.Kind == node.OpAcquire && op.Ticket.ID == "":
				without++
			case op.Kind == node.OpAcquire:
				with++
			}
			return 0
		}
		want := func(when string, tries int, queued bool) {
			t.Helper()
			a.wires[0][0].set(func() {
				if without != tries || with > 0 != queued {
					t.Errorf("%s: %d acquires without a ticket and %d with one, want %d, and with one: %t", when, without, with, tries, queued)
				}
			})
		}
		server, waits := a.servers[0], lockcore.Request{Resource: "r", TTL: 30 * time.Second, Wait: time.Minute}
		held := a.must(server, waits)
		want("the resource was free", 1, false)
		granted := make(chan lockcore.Lease)
		for range 2 {
			go func() { granted <- a.must(server, waits) }()
			time.Sleep(time.Second / 2)
		}
		want("two wait", 2, true)
		for range 2 {
			if err := server.Release(t.Context(), held.ID); err != nil {
				t.Fatal(err)
			}
			held = <-granted
		}
		want("both were granted", 2, true)
	})
}
