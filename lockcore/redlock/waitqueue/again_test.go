package waitqueue

import (
	"crypto/rand"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/random"
)

// listed is a node with a list of tickets, whose replies come at once.
type listed struct {
	node.Node
	mu      sync.Mutex
	tickets map[string]bool // by id
	sent    int             // enqueues
	late    chan struct{}   // if not nil, a dequeue is submitted when it is closed
}

func (n *listed) Submit(op *node.Op, i int, sink node.Sink) {
	if op.Kind == node.OpDequeue && n.late != nil {
		<-n.late
	}
	n.mu.Lock()
	switch op.Kind {
	case node.OpEnqueue:
		n.tickets[op.Ticket.ID] = true
		n.sent++
	case node.OpDequeue:
		delete(n.tickets, op.Ticket.ID)
	}
	n.mu.Unlock()
	sink.Deliver(i, node.Reply{Outcome: node.Granted, Existing: true})
}

func (n *listed) has(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.tickets[id]
}

// cleaning is a queue over one node. Its dequeues are submitted when the test says so.
type cleaning struct {
	*Queue
	node *listed
	hold bool
	late []func()
}

func newCleaning() *cleaning {
	c := &cleaning{node: &listed{tickets: map[string]bool{}}}
	c.Queue = New(Config{
		Nodes: []node.Node{c.node}, NodeTimeout: time.Second, Random: random.Source{Reader: rand.Reader},
		Epoch: func() node.Epoch { return 1 }, Map: func() string { return "" },
		Cleanup: func(i int, op node.Op, _ time.Time, through func(*node.Op, int, node.Sink) bool) {
			submit := func() { through(&op, i, ignored{}) }
			if c.hold {
				c.late = append(c.late, submit)
				return
			}
			submit()
		},
	})
	return c
}

func (c *cleaning) enqueue(t *testing.T, id string) *Waiter {
	t.Helper()
	w, err := c.Enqueue("r", "", id)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// A request under a key gives up. It comes again at the same server before its dequeue is sent, or while the dequeue
// is repeated because the node did not reply. The dequeue leaves the ticket, which now belongs to the new request.
func TestADequeueLeavesTheTicketOfARequestThatCameAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCleaning()
		c.enqueue(t, "") // so that the other sends its ticket at once
		first := c.enqueue(t, "key")
		c.hold = true
		c.Leave(first, GivesUp)
		again := c.enqueue(t, "key")
		for _, submit := range c.late {
			submit()
		}
		if again.Ticket.ID != "key" || !c.node.has("key") {
			t.Errorf("the ticket %+v of a request that waits was dequeued", again.Ticket)
		}
		c.late, c.hold = nil, false
		c.Leave(again, GivesUp)
		if c.node.has("key") {
			t.Error("its own dequeue leaves the ticket")
		}
	})
}

// A poll that comes again at the moment when its place ends still has the place.
func TestAPollThatComesAgainAtTheLastMomentHasItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCleaning()
		first := c.enqueue(t, "")
		for range 100 {
			w := c.enqueue(t, "key")
			c.Leave(w, ComesAgain)
			time.Sleep(LingerTime)
			again := c.enqueue(t, "key")
			synctest.Wait()
			if again.Ticket.ID != "key" || !c.node.has("key") || !again.Ticket.Keyed {
				t.Fatalf("it has another place: %+v", again.Ticket)
			}
			c.Leave(again, GivesUp)
		}
		c.Leave(first, GivesUp)
	})
}

// A waiter's attempt carries its ticket, and the nodes dequeue the ticket when they grant. If a heartbeat restored
// the ticket meanwhile, it would stay behind. So the heartbeat waits until the attempt has ended.
func TestNoTicketIsRestoredWhileAnAttemptCarriesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCleaning()
		w := c.enqueue(t, "")
		if !tries(c.Queue, w) {
			t.Fatal("it does not try")
		}
		c.restore(t.Context(), 0, false)
		if c.node.sent != 0 {
			t.Error("the ticket was sent beside the attempt: a grant would leave it behind")
		}
		c.Postpone(w, time.Minute, MetQueue)
		c.restore(t.Context(), 0, true) // by the next heartbeat
		if !c.node.has(w.Ticket.ID) {
			t.Error("the node never gets the ticket that it lacks")
		}
	})
}

// A server that stops leaves the tickets of its requests on the nodes. It sends the ticket of a request that has not
// sent it yet.
func TestAStopLeavesATicketThatWasNotSent(t *testing.T) {
	for name, keyed := range map[string]string{"under a key": "key", "without a key": ""} {
		t.Run(name, func(t *testing.T) {
			c := newCleaning()
			w := c.enqueue(t, keyed) // the first, so that no ticket is sent
			c.HoldBack(w)
			c.Show(w)
			c.Stop()
			c.Leave(w, ComesAgain)
			if c.node.has(w.Ticket.ID) != (keyed != "") {
				t.Errorf("the node has the ticket: %v", c.node.has(w.Ticket.ID))
			}
		})
	}
}

// A request that comes again while its dequeue is being submitted enters the queue after that: its ticket reaches the
// nodes after the dequeue.
func TestATicketFollowsItsDequeue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCleaning()
		c.enqueue(t, "") // so that the other sends its ticket at once
		first := c.enqueue(t, "key")
		c.node.late = make(chan struct{})
		go c.Leave(first, GivesUp)
		synctest.Wait()
		var entered bool
		go func() {
			c.enqueue(t, "key")
			entered = true
		}()
		synctest.Wait()
		if entered {
			t.Error("it entered while the dequeue was being submitted")
		}
		close(c.node.late)
		synctest.Wait()
		if !entered || !c.node.has("key") {
			t.Errorf("entered: %v; the node has its ticket: %v", entered, c.node.has("key"))
		}
	})
}

// A waiter that is granted without an attempt that carried its ticket leaves none: no node dequeued it by a grant.
func TestAGrantWithoutTheTicketDequeuesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCleaning()
		c.enqueue(t, "") // so that the other sends its ticket at once
		w := c.enqueue(t, "key")
		c.Granted(w, time.Minute)
		if c.node.has("key") {
			t.Error("the ticket of a request that does not wait any more stands in the queue")
		}
	})
}

// A waiter that takes over the ticket of an earlier request gets it on a node that may lack it by the next heartbeat.
func TestATicketThatWasTakenOverIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCleaning()
		first := c.enqueue(t, "key")
		c.hold = true
		c.Leave(first, GivesUp)
		c.enqueue(t, "key") // as the first of its queue it sends no ticket
		for _, submit := range c.late {
			submit()
		}
		c.restore(t.Context(), 0, true)
		if !c.node.has("key") {
			t.Error("the node never gets the ticket that it lacks")
		}
	})
}
