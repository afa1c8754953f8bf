package nodetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

func ticket(id, server string, arrival int64) node.Ticket {
	return node.Ticket{ID: id, Server: server, Arrival: arrival, Holder: "holder of " + id}
}

func acquireWith(resource, owner string, t node.Ticket) node.Op {
	op := acquire(resource, owner)
	op.Ticket = t
	return op
}

func enqueue(resource string, t node.Ticket) node.Op {
	return node.Op{Kind: node.OpEnqueue, Resource: resource, Ticket: t}
}

func dequeue(resource string, t node.Ticket) node.Op {
	return node.Op{Kind: node.OpDequeue, Resource: resource, Ticket: t}
}

func forget(resource string, t node.Ticket) node.Op { //nolint:unparam // as enqueue and dequeue
	return node.Op{Kind: node.OpForget, Resource: resource, Ticket: t}
}

func heartbeat(server string, ttl time.Duration) node.Op {
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

// recorder is a server that listens for notifications. It has room for all of a test.
type recorder struct {
	subscribed chan struct{}
	wakes      chan string
}

// Subscribed is called when a subscription begins.
func (r *recorder) Subscribed() {
	select {
	case r.subscribed <- struct{}{}:
	default:
	}
}

// Wake records a notification.
func (r *recorder) Wake(resource string, t node.Ticket) {
	r.wakes <- fmt.Sprintf("%q %+v", resource, t)
}

// next returns the next notification, "" if none comes.
func (r *recorder) next() string {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case wake := <-r.wakes:
		return wake
	case <-timeout.C:
		return ""
	}
}

// listen subscribes for a server until the test ends.
func listen(t interface {
	Context() context.Context
	Cleanup(f func())
}, n node.Waker, server string) *recorder {
	r := &recorder{subscribed: make(chan struct{}, 1), wakes: make(chan string, 10_000)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var done sync.WaitGroup
	done.Go(func() { n.Subscribe(ctx, server, r) })
	t.Cleanup(func() { cancel(); done.Wait() })
	<-r.subscribed
	return r
}

// wantWake waits for the server's next notification.
func (s *suite) wantWake(r *recorder, resource string, t node.Ticket) {
	s.Helper()
	t.Arrival = 0 // a notification has none
	if got, want := r.next(), fmt.Sprintf("%q %+v", resource, t); got != want {
		s.Fatalf("notified of %q, want %s", got, want)
	}
}

// wantNoWake causes a notification on purpose: since they come in order, it would come
// after any other.
func (s *suite) wantNoWake(r *recorder, server string) {
	s.Helper()
	mark := ticket("mark", server, 1)
	const resource = "only for wantNoWake"
	s.want(heartbeat(server, longTTL), node.Reply{Outcome: node.Granted, Existing: true})
	s.want(enqueue(resource, mark), outcome(node.Granted))
	s.want(acquire(resource, "M"), outcome(node.Queued))
	s.wantWake(r, resource, mark)
	s.want(dequeue(resource, mark), outcome(node.Granted))
}

// dies waits until a server whose last heartbeat had this TTL is dead: until then its
// ticket blocks a queue. It acquires a lock.
func (s *suite) dies(server string, ttl time.Duration) {
	s.Helper()
	const resource = "only for dies"
	s.want(enqueue(resource, ticket("last", server, 1)), outcome(node.Granted))
	s.afterwards(ttl, func() error {
		if r := s.do(acquire(resource, "D")); r.Outcome != node.Granted {
			return fmt.Errorf("%+v: %s still blocks a queue", r, server)
		}
		return nil
	})
}

func queueTests() []test { //nolint:funlen // a table of scenarios
	t1, t2, t3 := ticket("t1", "s1", 10), ticket("t2", "s2", 20), ticket("t3", "s1", 30)
	queued := outcome(node.Queued)
	serversAlive := func(s *suite) {
		s.want(heartbeat("s1", longTTL), outcome(node.Granted))
		s.want(heartbeat("s2", longTTL), outcome(node.Granted))
	}
	return []test{
		{"waiters are served in order", func(s *suite) {
			serversAlive(s)
			s.want(acquire("a", "L0"), granted(s.base+1, longTTL))
			s.want(acquireWith("a", "L2", t2), waiting(held(s.base+1, "L0", longTTL), 1))
			s.want(acquireWith("a", "L1", t1), waiting(held(s.base+1, "L0", longTTL), 2)) // arrived earlier
			s.want(acquireWith("a", "L1", t1), waiting(held(s.base+1, "L0", longTTL), 2)) // the same ticket again
			s.want(read("a"), inQueue(locked(s.base+1, "L0", longTTL), t1, t2))
			s.want(retract("a", "L0", ""), granted(s.base+1, 0))
			s.want(acquireWith("a", "L2", t2), queued)
			s.want(acquireWith("a", "L1", t1), granted(s.base+2, longTTL))
			s.want(read("a"), inQueue(locked(s.base+2, "L1", longTTL), t2))
			s.want(retract("a", "L1", ""), granted(s.base+2, 0))
			s.want(acquireWith("a", "L2", t2), granted(s.base+3, longTTL))
			s.want(read("a"), inQueue(locked(s.base+3, "L2", longTTL)))
		}},
		{"an acquire without a ticket does not overtake the queue", func(s *suite) {
			serversAlive(s)
			s.want(enqueue("a", t1), outcome(node.Granted))
			s.want(acquire("a", "L0"), queued)
			s.want(read("a"), inQueue(outcome(node.NotHeld), t1))
			s.want(acquire("b", "L0"), granted(s.base+1, longTTL))
			s.want(dequeue("a", t1), outcome(node.Granted))
			s.want(acquire("a", "L0"), granted(s.base+2, longTTL))
		}},
		{"an earlier arrival is granted first, though it was not in the queue", func(s *suite) {
			serversAlive(s)
			s.want(enqueue("a", t2), outcome(node.Granted))
			s.want(acquireWith("a", "L3", t3), queued)
			s.want(acquireWith("a", "L1", t1), granted(s.base+1, longTTL))
			s.want(read("a"), inQueue(locked(s.base+1, "L1", longTTL), t2, t3))
		}},
		{"tickets with the same arrival are ordered by id", func(s *suite) {
			serversAlive(s)
			x, y := ticket("x", "s1", 10), ticket("y", "s1", 10)
			s.want(enqueue("a", y), outcome(node.Granted))
			s.want(enqueue("a", x), outcome(node.Granted))
			s.want(read("a"), inQueue(outcome(node.NotHeld), x, y))
			s.want(acquireWith("a", "LY", y), queued)
			s.want(acquireWith("a", "LX", x), granted(s.base+1, longTTL))
		}},
		{"a ticket that is enqueued again keeps its place", func(s *suite) {
			serversAlive(s)
			late := t1
			late.Arrival = 99
			s.want(enqueue("a", t1), outcome(node.Granted))
			s.want(enqueue("a", t2), outcome(node.Granted))
			s.want(enqueue("a", late), outcome(node.Granted))
			s.want(read("a"), inQueue(outcome(node.NotHeld), t1, t2))
		}},
		{"arrivals of today are exact", func(s *suite) {
			serversAlive(s)
			x, y := ticket("x", "s1", 1_800_000_000_000_001), ticket("y", "s1", 1_800_000_000_000_000)
			s.want(enqueue("a", x), outcome(node.Granted))
			s.want(enqueue("a", y), outcome(node.Granted))
			s.want(read("a"), inQueue(outcome(node.NotHeld), y, x))
		}},
		{"a keyed ticket keeps its place over its servers", func(s *suite) {
			serversAlive(s)
			mine := node.Ticket{ID: "k", Server: "s1", Arrival: 10, Holder: "x", Keyed: true}
			later := node.Ticket{ID: "k", Server: "s2", Arrival: 90, Holder: "x", Keyed: true}
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			s.want(enqueue("a", mine), outcome(node.Granted))
			s.want(enqueue("a", t2), outcome(node.Granted))
			s.want(enqueue("a", later), outcome(node.Granted))
			shown := later
			shown.Arrival, shown.Keyed = 10, false
			s.want(read("a"), inQueue(locked(s.base+1, "L1", longTTL), shown, t2))
			ending := later
			ending.Keyed = false // its wait ends without a grant
			s.want(dequeue("a", ending), outcome(node.Granted))
			s.want(read("a"), inQueue(locked(s.base+1, "L1", longTTL), t2))
			s.want(enqueue("a", mine), outcome(node.Granted))
			s.want(release("a", "L1", s.base+1), granted(s.base+1, 0))
			s.want(acquireWith("a", "L2", t2), queued)
			s.want(acquireWith("a", "L3", later), granted(s.base+3, longTTL))
			s.want(enqueue("a", later), outcome(node.Granted)) // the other nodes refused their votes
			s.want(read("a"), inQueue(locked(s.base+3, "L3", longTTL), shown, t2))
			s.want(dequeue("a", later), outcome(node.Granted)) // its wait ended with a lease
			s.want(enqueue("a", later), outcome(node.Granted))
			shown.Arrival = 90
			s.want(read("a"), inQueue(locked(s.base+3, "L3", longTTL), t2, shown))
			s.want(dequeue("a", later), outcome(node.Granted))
			latest := later
			latest.Arrival = 95
			s.want(enqueue("a", latest), outcome(node.Granted))
			shown.Arrival = 95
			s.want(read("a"), inQueue(locked(s.base+3, "L3", longTTL), t2, shown))
		}},
		{"a keyed place is forgotten unless its request came again elsewhere", func(s *suite) {
			serversAlive(s)
			mine := node.Ticket{ID: "k", Server: "s1", Arrival: 10, Holder: "x", Keyed: true}
			elsewhere := node.Ticket{ID: "k", Server: "s2", Arrival: 90, Holder: "x", Keyed: true}
			leave := func(ticket node.Ticket) {
				ticket.Keyed = false
				s.want(dequeue("a", ticket), outcome(node.Granted))
			}
			arrivesAgainAt := func(arrival int64) {
				s.Helper()
				shown := elsewhere
				shown.Arrival, shown.Keyed = arrival, false
				s.want(enqueue("a", elsewhere), outcome(node.Granted))
				s.want(read("a"), inQueue(outcome(node.NotHeld), shown))
				leave(elsewhere)
			}
			s.want(forget("a", mine), outcome(node.Granted)) // there is none
			s.want(enqueue("a", mine), outcome(node.Granted))
			leave(mine)
			arrivesAgainAt(10)
			s.want(forget("a", mine), outcome(node.Granted))
			arrivesAgainAt(10)
			s.want(forget("a", elsewhere), outcome(node.Granted))
			arrivesAgainAt(90)
		}},
		{"the end of a keyed wait removes its ticket whatever its server", func(s *suite) {
			serversAlive(s)
			s1, s2 := listen(s, s.Node, "s1"), listen(s, s.Node, "s2")
			mine := node.Ticket{ID: "k", Server: "s1", Arrival: 10, Holder: "x", Keyed: true}
			s.want(enqueue("a", mine), outcome(node.Granted))
			s.want(enqueue("a", t2), outcome(node.Granted))
			anywhere := node.Ticket{ID: "k", Server: "s9", Keyed: true}
			s.want(dequeue("a", anywhere), outcome(node.Granted))
			told := mine
			told.Keyed = false
			s.wantWake(s1, "a", told) // it may have the lease
			s.wantWake(s2, "a", t2)   // the lock is free, and it is first now
			s.want(read("a"), inQueue(outcome(node.NotHeld), t2))
			mine.Arrival = 90 // the earlier arrival is forgotten
			s.want(enqueue("a", mine), outcome(node.Granted))
			shown := mine
			shown.Keyed = false
			s.want(read("a"), inQueue(outcome(node.NotHeld), t2, shown))
			s.want(dequeue("a", mine), outcome(node.Granted)) // its own server
			s.want(dequeue("a", mine), outcome(node.Granted)) // it is not there
			s.wantNoWake(s1, "s1")
			s.want(read("a"), inQueue(outcome(node.NotHeld), t2))
		}},
		{"the end of a keyed wait notifies every other server where its request waits", func(s *suite) {
			s1, s2, s3 := listen(s, s.Node, "s1"), listen(s, s.Node, "s2"), listen(s, s.Node, "s3")
			at := func(server string) node.Ticket {
				return node.Ticket{ID: "k", Server: server, Arrival: 10, Holder: "x", Keyed: true}
			}
			unkeyed := func(t node.Ticket) node.Ticket { t.Keyed = false; return t }
			finds := func(server string) node.Ticket { return node.Ticket{ID: "k", Server: server} }
			asks := func(servers ...string) {
				for _, server := range servers {
					s.want(heartbeat(server, longTTL), node.Reply{Outcome: node.Granted, Existing: true})
					s.do(acquireWith("a", "L2", at(server)))
				}
			}
			for _, server := range []string{"s1", "s2", "s3"} {
				s.want(heartbeat(server, longTTL), outcome(node.Granted))
			}
			s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
			asks("s1", "s2", "s3", "s1", "s2")
			s.want(read("a"), inQueue(locked(s.base+1, "L1", longTTL), unkeyed(at("s2"))))
			s.want(dequeue("a", at("s2")), outcome(node.Granted)) // it was granted
			s.wantWake(s1, "a", finds("s1"))
			s.wantWake(s3, "a", finds("s3"))
			s.want(dequeue("a", at("s2")), outcome(node.Granted)) // nobody is remembered
			asks("s1", "s2", "s3", "s1", "s3")
			s.want(dequeue("a", at("s1")), outcome(node.Granted))
			s.wantWake(s3, "a", unkeyed(at("s3"))) // whose ticket has the place
			s.wantWake(s2, "a", finds("s2"))
			s.want(read("a"), inQueue(locked(s.base+1, "L1", longTTL)))
			asks("s1", "s2", "s3")
			s.want(dequeue("a", unkeyed(at("s1"))), outcome(node.Granted)) // its caller hung up
			s.want(dequeue("a", at("s3")), outcome(node.Granted))
			s.wantWake(s2, "a", finds("s2"))
			asks("s1")
			s.want(dequeue("a", unkeyed(at("s1"))), outcome(node.Granted)) // before it came again
			asks("s2")
			s.want(dequeue("a", at("s2")), outcome(node.Granted))
			for server, r := range map[string]*recorder{"s1": s1, "s2": s2, "s3": s3} {
				s.wantNoWake(r, server)
			}
		}},
		{"the tickets of a dead server do not block the queue", func(s *suite) {
			s.want(heartbeat("s1", shortTTL), outcome(node.Granted))
			s.want(heartbeat("s2", longTTL), outcome(node.Granted))
			s.want(acquire("a", "L0"), granted(s.base+1, longTTL))
			s.want(acquireWith("a", "L1", t1), waiting(held(s.base+1, "L0", longTTL), 1))
			s.want(acquireWith("a", "L2", t2), waiting(held(s.base+1, "L0", longTTL), 2))
			s.dies("s1", shortTTL)
			s2 := listen(s, s.Node, "s2")
			s.want(retract("a", "L0", ""), granted(s.base+1, 0))
			s.wantWake(s2, "a", t2)
			s.want(acquireWith("a", "L2", t2), granted(s.base+2, longTTL))
			s.want(read("a"), inQueue(locked(s.base+2, "L2", longTTL)))
		}},
		{"a server that enqueues is alive for EnqueuedTTL", func(s *suite) {
			s.want(enqueue("a", t1), outcome(node.Granted))
			s.want(acquire("a", "L0"), queued)
			s.want(heartbeat("s1", longTTL), node.Reply{Outcome: node.Granted, Existing: true})
			s.want(enqueue("a", t2), outcome(node.Granted))
			s.want(dequeue("a", t1), outcome(node.Granted))
			s.dies("s2", node.EnqueuedTTL)
			s.want(acquire("a", "L0"), granted(s.base+2, longTTL))
		}},
		{"a server is alive while it sends heartbeats", func(s *suite) {
			s.want(heartbeat("s1", shortTTL), outcome(node.Granted))
			s.dies("s1", shortTTL)
			s.want(heartbeat("s1", longTTL), outcome(node.Granted))
			s.want(heartbeat("s1", longTTL), node.Reply{Outcome: node.Granted, Existing: true})
		}},
		{"a release notifies the server of the first ticket, and no other", func(s *suite) {
			serversAlive(s)
			s1, s2 := listen(s, s.Node, "s1"), listen(s, s.Node, "s2")
			s.want(acquire("a", "L0"), granted(s.base+1, longTTL))
			s.want(acquireWith("a", "L1", t1), waiting(held(s.base+1, "L0", longTTL), 1))
			s.want(acquireWith("a", "L2", t2), waiting(held(s.base+1, "L0", longTTL), 2))
			s.wantNoWake(s1, "s1")
			s.want(release("a", "L0", s.base+1), granted(s.base+1, 0))
			s.wantWake(s1, "a", t1)
			s.wantNoWake(s2, "s2")
			s.want(acquireWith("a", "L2", t2), queued)
			s.wantWake(s1, "a", t1) // again, in case it was lost
			s.wantNoWake(s2, "s2")
		}},
		{"a release does not notify a server that asks for the lock right behind it", func(s *suite) {
			serversAlive(s)
			s1, s2 := listen(s, s.Node, "s1"), listen(s, s.Node, "s2")
			s.want(acquire("a", "L0"), granted(s.base+1, longTTL))
			s.want(enqueue("a", t1), outcome(node.Granted))
			s.want(enqueue("a", t2), outcome(node.Granted))
			first := release("a", "L0", s.base+1)
			first.Ticket.Server = t1.Server
			s.want(first, granted(s.base+1, 0))
			s.wantNoWake(s1, "s1")
			second := release("a", "L1", s.do(acquireWith("a", "L1", t1)).Grant)
			second.Ticket.Server = t1.Server
			s.do(second)
			s.wantWake(s2, "a", t2) // it does not ask by itself
			s.wantNoWake(s1, "s1")
		}},
		{"dequeuing the first ticket notifies the server of the next", func(s *suite) {
			serversAlive(s)
			s1, s2 := listen(s, s.Node, "s1"), listen(s, s.Node, "s2")
			for _, t := range []node.Ticket{t1, t2, t3} {
				s.want(enqueue("a", t), outcome(node.Granted))
			}
			s.want(dequeue("a", t1), outcome(node.Granted))
			s.wantWake(s2, "a", t2)
			s.want(dequeue("a", t3), outcome(node.Granted)) // it was not first
			s.want(dequeue("a", t3), outcome(node.Granted)) // it is not there
			s.want(dequeue("a", t2), outcome(node.Granted)) // the queue is empty now
			s.wantNoWake(s1, "s1")
			s.wantNoWake(s2, "s2")
			s.want(acquire("a", "L0"), granted(s.base+1, longTTL))
		}},
		{"dequeuing the first ticket of a held lock notifies no server", func(s *suite) {
			serversAlive(s)
			s2 := listen(s, s.Node, "s2")
			s.want(acquire("a", "L0"), granted(s.base+1, longTTL))
			s.want(enqueue("a", t1), outcome(node.Granted))
			s.want(enqueue("a", t2), outcome(node.Granted))
			s.want(dequeue("a", t1), outcome(node.Granted))
			s.wantNoWake(s2, "s2")
		}},
		{"a retraction that leaves the lock notifies no server", func(s *suite) {
			serversAlive(s)
			s1 := listen(s, s.Node, "s1")
			s.want(attempt("a", "K1", "attempt1"), granted(s.base+1, longTTL))
			s.do(attempt("a", "K1", "attempt2"))
			s.want(enqueue("a", t1), outcome(node.Granted))
			s.want(retract("a", "K1", "attempt1"), outcome(node.NotHeld))
			s.wantNoWake(s1, "s1")
			s.want(retract("a", "K1", "attempt2"), granted(s.base+1, 0))
			s.wantWake(s1, "a", t1)
		}},
		{"odd names in the queue", func(s *suite) {
			serversAlive(s)
			s1 := listen(s, s.Node, "s1")
			odd := node.Ticket{ID: "t-_9", Server: "s1", Arrival: 5, Holder: "  a holder, with \"blanks\"  ü "}
			bare := node.Ticket{ID: "t0", Server: "s1", Arrival: 6}
			const resource = "*[a] ü  #"
			s.want(acquire(resource, "L0"), granted(s.base+1, longTTL))
			s.want(acquireWith(resource, "L1", odd), waiting(held(s.base+1, "L0", longTTL), 1))
			s.want(acquireWith(resource, "L2", bare), waiting(held(s.base+1, "L0", longTTL), 2))
			s.want(read(resource), inQueue(locked(s.base+1, "L0", longTTL), odd, bare))
			s.want(retract(resource, "L0", ""), granted(s.base+1, 0))
			s.wantWake(s1, resource, odd)
			s.want(dequeue(resource, odd), outcome(node.Granted))
			s.wantWake(s1, resource, bare)
		}},
		{"a read lists the first MaxShown tickets", func(s *suite) {
			serversAlive(s)
			const all = node.MaxShown + 20
			for i := range int64(all) {
				s.want(enqueue("a", ticket(fmt.Sprintf("t%d", i), "s1", all-i)), outcome(node.Granted))
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
		{"a purge empties the queues", func(s *suite) {
			serversAlive(s)
			s.want(enqueue("a", t1), outcome(node.Granted))
			s.admit(100)
			s.want(acquire("a", "L0"), granted(s.base+1, longTTL))
			s.want(heartbeat("s1", longTTL), outcome(node.Granted)) // the purge forgot the servers
		}},
	}
}
