package nodetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

func ticket(id, server string, arrival int64) node.Ticket {
	return node.Ticket{ID: id, Server: server, Arrival: arrival, Holder: "who waits as " + id}
}

func wakesFor(resource, lease string, t node.Ticket) node.Op {
	op := acquire(resource, lease)
	op.Ticket = t
	return op
}

func stand(resource string, t node.Ticket) node.Op {
	return node.Op{Kind: node.OpEnqueue, Resource: resource, Ticket: t}
}

func leave(resource string, t node.Ticket) node.Op {
	return node.Op{Kind: node.OpDequeue, Resource: resource, Ticket: t}
}

func keep(server string, ttl time.Duration) node.Op {
	return node.Op{Kind: node.OpHeartbeat, Ticket: node.Ticket{Server: server}, TTL: ttl}
}

func waiting(r node.Reply, n int) node.Reply {
	r.Waiting = n
	return r
}

func inQueue(r node.Reply, tickets ...node.Ticket) node.Reply {
	r.Waiting, r.Queue = len(tickets), tickets
	return r
}

// recorder is a server that is told of turns.
type recorder struct {
	subscribed chan struct{}
	turns      chan string
}

// Subscribed is called once a subscription stands.
func (r *recorder) Subscribed() {
	select {
	case r.subscribed <- struct{}{}:
	default:
	}
}

// Turn takes a turn; it has room for all of a test.
func (r *recorder) Wake(resource string, t node.Ticket) {
	select {
	case r.turns <- fmt.Sprintf("%q %+v", resource, t):
	default:
	}
}

// listen subscribes for a server until the test ends.
func listen(t interface {
	Context() context.Context
	Cleanup(f func())
}, n node.Waker, server string) *recorder {
	r := &recorder{subscribed: make(chan struct{}, 1), turns: make(chan string, 10_000)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var done sync.WaitGroup
	done.Go(func() { n.Subscribe(ctx, server, r) })
	t.Cleanup(func() { cancel(); done.Wait() })
	<-r.subscribed
	return r
}

// wantWake waits for the next turn that the server is told of.
func (s *suite) wantWake(r *recorder, resource string, t node.Ticket) {
	s.Helper()
	t.Arrival = 0 // is not told
	want := fmt.Sprintf("%q %+v", resource, t)
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case got := <-r.turns:
		if got != want {
			s.Fatalf("told %s, want %s", got, want)
		}
	case <-timeout.C:
		s.Fatalf("not told %s", want)
	}
}

// wantNoWake: turns are told in order, so one that is made for the purpose
// would come after any other.
func (s *suite) wantNoWake(r *recorder, server string) {
	s.Helper()
	mark := ticket("mark", server, 1)
	const resource = "only for wantNoTurn"
	s.want(keep(server, longTTL), node.Reply{Outcome: node.Granted, Existing: true})
	s.want(stand(resource, mark), outcome(node.Granted))
	s.want(acquire(resource, "M"), outcome(node.Queued))
	s.wantWake(r, resource, mark)
	s.want(leave(resource, mark), outcome(node.Granted))
}

// dies waits until a server that was kept alive for ttl is so no longer: it
// blocks a line until then. It takes a lock.
func (s *suite) dies(server string, ttl time.Duration) {
	s.Helper()
	const resource = "only for dies"
	s.want(stand(resource, ticket("last", server, 1)), outcome(node.Granted))
	s.passes(ttl, func() error {
		if r := s.do(acquire(resource, "D")); r.Outcome != node.Granted {
			return fmt.Errorf("%+v: %s still blocks a line", r, server)
		}
		return nil
	})
}

func lineTests() []test { //nolint:funlen // a table of scenarios
	t1, t2, t3 := ticket("t1", "s1", 10), ticket("t2", "s2", 20), ticket("t3", "s1", 30)
	queued := outcome(node.Queued)
	kept := func(s *suite) {
		s.admit(100)
		s.want(keep("s1", longTTL), outcome(node.Granted))
		s.want(keep("s2", longTTL), outcome(node.Granted))
	}
	return []test{
		{"waiters are served in order", func(s *suite) {
			kept(s)
			s.want(acquire("a", "L0"), granted(s.high+1, longTTL))
			s.want(wakesFor("a", "L2", t2), waiting(held(s.high+1, "L0", longTTL), 1))
			s.want(wakesFor("a", "L1", t1), waiting(held(s.high+1, "L0", longTTL), 2)) // arrived earlier
			s.want(wakesFor("a", "L1", t1), waiting(held(s.high+1, "L0", longTTL), 2)) // asks again
			s.want(read("a"), inQueue(locked(s.high+1, "L0", longTTL), t1, t2))
			s.want(retract("a", "L0", ""), granted(s.high+1, 0))
			s.want(wakesFor("a", "L2", t2), queued)
			s.want(wakesFor("a", "L1", t1), granted(s.high+2, longTTL))
			s.want(read("a"), inQueue(locked(s.high+2, "L1", longTTL), t2))
			s.want(retract("a", "L1", ""), granted(s.high+2, 0))
			s.want(wakesFor("a", "L2", t2), granted(s.high+3, longTTL))
			s.want(read("a"), inQueue(locked(s.high+3, "L2", longTTL)))
		}},
		{"an acquire without a ticket does not overtake the line", func(s *suite) {
			kept(s)
			s.want(stand("a", t1), outcome(node.Granted))
			s.want(acquire("a", "L0"), queued)
			s.want(read("a"), inQueue(outcome(node.NotHeld), t1))
			s.want(acquire("b", "L0"), granted(s.high+1, longTTL))
			s.want(leave("a", t1), outcome(node.Granted))
			s.want(acquire("a", "L0"), granted(s.high+2, longTTL))
		}},
		{"an earlier arrival goes first even if it did not stand", func(s *suite) {
			kept(s)
			s.want(stand("a", t2), outcome(node.Granted))
			s.want(wakesFor("a", "L3", t3), queued)
			s.want(wakesFor("a", "L1", t1), granted(s.high+1, longTTL))
			s.want(read("a"), inQueue(locked(s.high+1, "L1", longTTL), t2, t3))
		}},
		{"who arrived at the same time is ordered by id", func(s *suite) {
			kept(s)
			x, y := ticket("x", "s1", 10), ticket("y", "s1", 10)
			s.want(stand("a", y), outcome(node.Granted))
			s.want(stand("a", x), outcome(node.Granted))
			s.want(read("a"), inQueue(outcome(node.NotHeld), x, y))
			s.want(wakesFor("a", "LY", y), queued)
			s.want(wakesFor("a", "LX", x), granted(s.high+1, longTTL))
		}},
		{"standing again keeps the place", func(s *suite) {
			kept(s)
			late := t1
			late.Arrival = 99
			s.want(stand("a", t1), outcome(node.Granted))
			s.want(stand("a", t2), outcome(node.Granted))
			s.want(stand("a", late), outcome(node.Granted))
			s.want(read("a"), inQueue(outcome(node.NotHeld), t1, t2))
		}},
		{"arrivals of today are exact", func(s *suite) {
			kept(s)
			x, y := ticket("x", "s1", 1_800_000_000_000_001), ticket("y", "s1", 1_800_000_000_000_000)
			s.want(stand("a", x), outcome(node.Granted))
			s.want(stand("a", y), outcome(node.Granted))
			s.want(read("a"), inQueue(outcome(node.NotHeld), y, x))
		}},
		{"a keyed ticket keeps its place over its servers", func(s *suite) {
			kept(s)
			mine := node.Ticket{ID: "k", Server: "s1", Arrival: 10, Holder: "x", Keyed: true}
			later := node.Ticket{ID: "k", Server: "s2", Arrival: 90, Holder: "x", Keyed: true}
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(stand("a", mine), outcome(node.Granted))
			s.want(stand("a", t2), outcome(node.Granted))
			s.want(stand("a", later), outcome(node.Granted))
			shown := later
			shown.Arrival, shown.Keyed = 10, false
			s.want(read("a"), inQueue(locked(s.high+1, "L1", longTTL), shown, t2))
			leaving := later
			leaving.Keyed = false // it ends without a grant
			s.want(leave("a", leaving), outcome(node.Granted))
			s.want(read("a"), inQueue(locked(s.high+1, "L1", longTTL), t2))
			s.want(stand("a", mine), outcome(node.Granted))
			s.want(release("a", "L1", s.high+1), granted(s.high+1, 0))
			s.want(wakesFor("a", "L2", t2), queued)
			s.want(wakesFor("a", "L3", later), granted(s.high+3, longTTL))
			s.want(stand("a", later), outcome(node.Granted)) // the grant ended that wait
			shown.Arrival = 90
			s.want(read("a"), inQueue(locked(s.high+3, "L3", longTTL), t2, shown))
			s.want(leave("a", later), outcome(node.Granted))
			latest := later
			latest.Arrival = 95
			s.want(stand("a", latest), outcome(node.Granted))
			shown.Arrival = 95
			s.want(read("a"), inQueue(locked(s.high+3, "L3", longTTL), t2, shown))
		}},
		{"the tickets of a dead server do not block the line", func(s *suite) {
			s.admit(100)
			s.want(keep("s1", shortTTL), outcome(node.Granted))
			s.want(keep("s2", longTTL), outcome(node.Granted))
			s.want(acquire("a", "L0"), granted(s.high+1, longTTL))
			s.want(wakesFor("a", "L1", t1), waiting(held(s.high+1, "L0", longTTL), 1))
			s.want(wakesFor("a", "L2", t2), waiting(held(s.high+1, "L0", longTTL), 2))
			s.dies("s1", shortTTL)
			s2 := listen(s, s.Node, "s2")
			s.want(retract("a", "L0", ""), granted(s.high+1, 0))
			s.wantWake(s2, "a", t2)
			s.want(wakesFor("a", "L2", t2), granted(s.high+2, longTTL))
			s.want(read("a"), inQueue(locked(s.high+2, "L2", longTTL)))
		}},
		{"who stands in the queue is alive for a while", func(s *suite) {
			s.admit(100)
			s.want(stand("a", t1), outcome(node.Granted))
			s.want(acquire("a", "L0"), queued)
			s.want(keep("s1", longTTL), node.Reply{Outcome: node.Granted, Existing: true})
			s.want(stand("a", t2), outcome(node.Granted))
			s.want(leave("a", t1), outcome(node.Granted))
			s.dies("s2", 3*time.Second)
			s.want(acquire("a", "L0"), granted(s.high+2, longTTL))
		}},
		{"a server lives as long as it is kept", func(s *suite) {
			s.admit(100)
			s.want(keep("s1", shortTTL), outcome(node.Granted))
			s.dies("s1", shortTTL)
			s.want(keep("s1", longTTL), outcome(node.Granted))
			s.want(keep("s1", longTTL), node.Reply{Outcome: node.Granted, Existing: true})
		}},
		{"a release tells the first in the queue, and nobody else", func(s *suite) {
			kept(s)
			s1, s2 := listen(s, s.Node, "s1"), listen(s, s.Node, "s2")
			s.want(acquire("a", "L0"), granted(s.high+1, longTTL))
			s.want(wakesFor("a", "L1", t1), waiting(held(s.high+1, "L0", longTTL), 1))
			s.want(wakesFor("a", "L2", t2), waiting(held(s.high+1, "L0", longTTL), 2))
			s.wantNoWake(s1, "s1")
			s.want(release("a", "L0", s.high+1), granted(s.high+1, 0))
			s.wantWake(s1, "a", t1)
			s.wantNoWake(s2, "s2")
			s.want(wakesFor("a", "L2", t2), queued)
			s.wantWake(s1, "a", t1) // once more, in case it was lost
			s.wantNoWake(s2, "s2")
		}},
		{"who is first and leaves hands its turn on", func(s *suite) {
			kept(s)
			s1, s2 := listen(s, s.Node, "s1"), listen(s, s.Node, "s2")
			for _, t := range []node.Ticket{t1, t2, t3} {
				s.want(stand("a", t), outcome(node.Granted))
			}
			s.want(leave("a", t1), outcome(node.Granted))
			s.wantWake(s2, "a", t2)
			s.want(leave("a", t3), outcome(node.Granted)) // was not first
			s.want(leave("a", t3), outcome(node.Granted)) // is not there
			s.want(leave("a", t2), outcome(node.Granted)) // leaves nobody
			s.wantNoWake(s1, "s1")
			s.wantNoWake(s2, "s2")
			s.want(acquire("a", "L0"), granted(s.high+1, longTTL))
		}},
		{"who leaves while the lock is held hands nothing on", func(s *suite) {
			kept(s)
			s2 := listen(s, s.Node, "s2")
			s.want(acquire("a", "L0"), granted(s.high+1, longTTL))
			s.want(stand("a", t1), outcome(node.Granted))
			s.want(stand("a", t2), outcome(node.Granted))
			s.want(leave("a", t1), outcome(node.Granted))
			s.wantNoWake(s2, "s2")
		}},
		{"a retraction that leaves the lock notifies nobody", func(s *suite) {
			kept(s)
			s1 := listen(s, s.Node, "s1")
			s.want(attempt("a", "K1", "attempt1"), granted(s.high+1, longTTL))
			s.do(attempt("a", "K1", "attempt2"))
			s.want(stand("a", t1), outcome(node.Granted))
			s.want(retract("a", "K1", "attempt1"), outcome(node.NotHeld))
			s.wantNoWake(s1, "s1")
			s.want(retract("a", "K1", "attempt2"), granted(s.high+1, 0))
			s.wantWake(s1, "a", t1)
		}},
		{"odd names in the queue", func(s *suite) {
			kept(s)
			s1 := listen(s, s.Node, "s1")
			odd := node.Ticket{ID: "t-_9", Server: "s1", Arrival: 5, Holder: "  a holder, with \"blanks\"  ü "}
			bare := node.Ticket{ID: "t0", Server: "s1", Arrival: 6}
			const resource = "*[a] ü  #"
			s.want(acquire(resource, "L0"), granted(s.high+1, longTTL))
			s.want(wakesFor(resource, "L1", odd), waiting(held(s.high+1, "L0", longTTL), 1))
			s.want(wakesFor(resource, "L2", bare), waiting(held(s.high+1, "L0", longTTL), 2))
			s.want(read(resource), inQueue(locked(s.high+1, "L0", longTTL), odd, bare))
			s.want(retract(resource, "L0", ""), granted(s.high+1, 0))
			s.wantWake(s1, resource, odd)
			s.want(leave(resource, odd), outcome(node.Granted))
			s.wantWake(s1, resource, bare)
		}},
		{"a read lists the first of a long line", func(s *suite) {
			kept(s)
			const all = node.MaxShown + 20
			for i := range int64(all) {
				s.want(stand("a", ticket(fmt.Sprintf("t%d", i), "s1", all-i)), outcome(node.Granted))
			}
			r := s.do(read("a"))
			if r.Waiting != all || len(r.Queue) != node.MaxShown {
				s.Fatalf("%d wait and %d are listed", r.Waiting, len(r.Queue))
			}
			for i, t := range r.Queue {
				if t.Arrival != int64(i+1) {
					s.Fatalf("listed at %d: %+v", i, t)
				}
			}
		}},
		{"a purge empties the lines", func(s *suite) {
			kept(s)
			s.want(stand("a", t1), outcome(node.Granted))
			s.admit(100)
			s.want(acquire("a", "L0"), granted(s.high+1, longTTL))
			s.want(keep("s1", longTTL), outcome(node.Granted)) // nobody lives
		}},
		{"an empty node keeps nobody in the queue", func(s *suite) {
			if !s.observe().Empty {
				return // it bootstrapped itself
			}
			s.want(keep("s1", longTTL), node.Reply{Outcome: node.NotAdmitted, Epoch: s.observe().Epoch})
			seen := s.observe()
			s.want(leave("a", t1), outcome(node.Granted))
			if s.observe() != seen {
				s.Errorf("%+v, was %+v", s.observe(), seen)
			}
			kept(s)
		}},
	}
}
