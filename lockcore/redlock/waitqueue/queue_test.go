package waitqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// A request under a key is broken off. Its ticket stays on the nodes for a while, and if the request comes again, it
// has its place. Meanwhile the waiter behind it asks the nodes, which refuse it as long as the place is kept.
func TestBrokenOffRequestKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &slowNode{}
		q := newQueue(n)
		enqueue := func(id string) *Waiter {
			w, err := q.Enqueue("r", "", id)
			if err != nil {
				t.Fatal(err)
			}
			return w
		}
		first, second := enqueue("key"), enqueue("")
		if twin := enqueue("key"); twin.Ticket.ID == "key" || twin.Ticket.Keyed {
			t.Error("two requests with one key have one place")
		} else {
			q.Leave(twin, GivesUp)
		}
		q.Leave(first, ComesAgain)
		time.Sleep(LingerTime - time.Millisecond)
		if !tries(q, second) {
			t.Error("nobody asks for the resource")
		}
		if sent, gone := n.enqueued(), n.dequeued(); len(gone) != 1 || gone[0].ID == "key" || !slices.ContainsFunc(sent, func(t node.Ticket) bool { return t.ID == "key" }) {
			t.Errorf("the nodes have not kept the place: sent %+v, dequeued %+v", sent, gone)
		}
		if again := enqueue("key"); again != first {
			t.Error("the place is another one")
		}
		time.Sleep(time.Minute)
		if !tries(q, first) {
			t.Error("it is not first any more")
		}
		q.Leave(first, ComesAgain)
		before := len(n.dequeued())
		time.Sleep(LingerTime)
		synctest.Wait()
		if !tries(q, second) {
			t.Error("the next one is not first")
		}
		if gone := n.dequeued()[before:]; len(gone) != 1 || gone[0].ID != "key" || gone[0].Keyed {
			t.Errorf("dequeued %+v: the nodes must remember the arrival", gone)
		}
		q.Leave(second, ComesAgain) // has no key
		if n := q.Len(); n != 0 {
			t.Errorf("%d wait", n)
		}
		time.Sleep(time.Minute)
	})
}

// A node that lost its tickets gets them again from a list, many in one call, because one call for each ticket of a
// crowd would cost too much. A waiter that was removed after the list was made is not enqueued again.
func TestRestoreSkipsRemovedWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowNode{}
		q := newQueue(slow)
		waiters := map[string]*Waiter{}
		for k := range restoredAtOnce + 2 { // the first of each resource: no ticket is sent
			w, err := q.Enqueue(fmt.Sprint(k), "", "")
			if err != nil {
				t.Fatal(err)
			}
			waiters[w.Ticket.ID] = w
		}
		go q.restore(t.Context(), 0, false)
		synctest.Wait() // the first replies are on their way
		first := slow.enqueued()
		if len(first) != restoredAtOnce {
			t.Fatalf("%d tickets at once", len(first))
		}
		for _, ticket := range first {
			delete(waiters, ticket.ID)
		}
		for _, w := range waiters {
			q.Leave(w, GivesUp)
		}
		time.Sleep(5 * time.Second)
		if n := len(slow.enqueued()); n != restoredAtOnce {
			t.Errorf("%d tickets were put back, %d still waited", n, restoredAtOnce)
		}
	})
}

// A node that missed a ticket gets it after the next heartbeats, once. A restore that breaks off continues with the
// heartbeat after it.
func TestANodeGetsTheTicketsThatItMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &busyNode{refuse: 4}
		q := newQueue(n)
		for range 4 { // the first one's ticket goes with its try
			if _, err := q.Enqueue("r", "", ""); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { q.Run(ctx) })
		time.Sleep(3*heartbeatPause + heartbeatPause/2)
		cancel()
		run.Wait()
		if len(n.taken) != 3 {
			t.Errorf("the node has %d of 3 tickets: %v", len(n.taken), n.taken)
		}
	})
}

// A waiter that is woken again and again without a grant ends when its time is over. If there are several reasons for
// the end, it always reports the same one.
func TestWaitEndsThoughItIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		w, err := q.Enqueue("r", "", "")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		end := time.Now().Add(time.Second)
		for _, reason := range []struct {
			add  func()
			want error
		}{
			{func() {}, nil},
			{q.Stop, lockcore.ErrStopping},
			{func() { time.Sleep(time.Second) }, ErrTimedOut},
			{cancel, context.Canceled},
		} {
			reason.add()
			for range 20 {
				q.Released("r")()
				if _, err := q.Await(ctx, end, w); !errors.Is(err, reason.want) {
					t.Errorf("%v, want %v", err, reason.want)
				}
			}
		}
	})
}

// A waiter whose wait ends at the moment when it is woken has not tried. The wake is passed to the next waiter, which
// tries.
func TestAWakeAtTheEndOfAWaitIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(&slowNode{})
		var waiters []*Waiter
		for _, id := range []string{"key", ""} {
			w, err := q.Enqueue("r", "", id)
			if err != nil {
				t.Fatal(err)
			}
			waiters = append(waiters, w)
		}
		tries(q, waiters[0])
		q.Postpone(waiters[0], time.Hour, MetLease)
		q.Released("r")()
		if _, err := q.Await(t.Context(), time.Now(), waiters[0]); !errors.Is(err, ErrTimedOut) {
			t.Fatal(err)
		}
		q.Leave(waiters[0], ComesAgain)
		if !tries(q, waiters[1]) {
			t.Error("nobody tries the resource that was released")
		}
	})
}

// The nodes decide which of two waiters is first, and it takes a quorum of them. If only a single node says that the
// second one is first, it tries in vain. That wakes the first one, and the second one is tried again later.
func TestQuorumOfNodesDecidesWhoIsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(&slowNode{}, &slowNode{}, &slowNode{})
		var waiters []*Waiter
		for _, id := range []string{"", "key"} {
			w, err := q.Enqueue("r", "", id)
			if err != nil {
				t.Fatal(err)
			}
			tries(q, w)
			q.Postpone(w, time.Hour, MetLease)
			waiters = append(waiters, w)
		}
		for i, woken := range []struct {
			waiter, node, first int
			tries               bool
		}{
			{1, 0, 0, false}, // it lacks the other's ticket
			{0, 1, 0, true},
			{0, 2, 0, false},
			{1, 0, 0, true},
			{1, 1, 1, true},  // the second has come back, and was there before
			{0, 0, 1, false}, // not a quorum
			{0, 2, 0, true},  // nor has an unkeyed ticket lost its place for good
		} {
			listener{q, woken.node}.Wake("r", waiters[woken.waiter].Ticket)
			if q.waiters["r"][0] != waiters[woken.first] {
				t.Fatalf("after wake %d waiter %d is not first", i+1, woken.first)
			}
			if tries(q, waiters[woken.first]) != woken.tries {
				t.Errorf("after wake %d: the first tries, or not: want %v", i+1, woken.tries)
			}
		}
		time.Sleep(time.Minute)
	})
}

// A waiter that lost the first place between two wakes, and gets it again, tries: the queue does not take it for a
// waiter that was woken a moment ago.
func TestWhoIsFirstAgainTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(&slowNode{}, &slowNode{}, &slowNode{}, &slowNode{}, &slowNode{})
		first, err := q.Enqueue("r", "", "")
		if err != nil {
			t.Fatal(err)
		}
		second, err := q.Enqueue("r", "", "key")
		if err != nil {
			t.Fatal(err)
		}
		wake := func(w *Waiter, nodes ...int) {
			for _, node := range nodes {
				listener{q, node}.Wake("r", w.Ticket)
			}
		}
		wake(second, 0, 1)
		tries(q, first)
		q.Postpone(first, time.Hour, MetLease)
		tried := make(chan error, 1)
		go func() {
			_, err := q.Await(t.Context(), time.Now().Add(time.Hour), first)
			tried <- err
		}()
		synctest.Wait()
		wake(first, 4)
		wake(second, 2)
		time.Sleep(2 * wakeGrace)
		if !tries(q, second) {
			t.Error("a quorum named the second, which does not try")
		}
		q.Postpone(second, time.Hour, MetLease)
		wake(first, 3, 2)
		select {
		case err := <-tried:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(2 * wakeGrace):
			t.Error("the first does not try")
			q.Stop()
			<-tried
		}
		time.Sleep(time.Minute)
	})
}

// A server without waiters sends heartbeats only while somebody asks which servers run. A server with waiters always
// sends them.
func TestHeartbeatsOfAnIdleServer(t *testing.T) {
	for _, unlisted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := &beating{}
			q := newQueue(n)
			q.cfg.Unlisted = unlisted
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { q.Run(ctx) })
			during := func() int {
				n.mu.Lock()
				before := n.beats
				n.mu.Unlock()
				time.Sleep(time.Minute)
				n.mu.Lock()
				defer n.mu.Unlock()
				return n.beats - before
			}
			if beats := during(); (beats == 0) != unlisted {
				t.Errorf("unlisted: %t: %d heartbeats without waiters", unlisted, beats)
			}
			w, err := q.Enqueue("a", "holder", "")
			if err != nil {
				t.Fatal(err)
			}
			if beats := during(); beats < 10 {
				t.Errorf("unlisted: %t: %d heartbeats with a waiter", unlisted, beats)
			}
			q.Leave(w, GivesUp)
			during()
			if beats := during(); (beats == 0) != unlisted {
				t.Errorf("unlisted: %t: %d heartbeats after the waiter has left", unlisted, beats)
			}
			cancel()
			running.Wait()
		})
	}
}

// A request that tries without its ticket is passed by one behind it, which the nodes know and name as the first.
// From then on the nodes have its ticket, or it tries at once. Otherwise nobody would wake it.
func TestWhoHeldItsTicketBackIsNotForgotten(t *testing.T) {
	for name, c := range map[string]struct {
		granted bool // before the first try ends; else after it
		tries   bool
		sent    int
	}{
		"passed":                    {sent: 2},
		"passed, and the other won": {granted: true, tries: true, sent: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &slowNode{}
				q := newQueue(n)
				first, err := q.Enqueue("r", "", "")
				if err != nil || !q.HoldBack(first) {
					t.Fatalf("it sent its ticket already, or %v", err)
				}
				second, err := q.Enqueue("r", "", "")
				if err != nil {
					t.Fatal(err)
				}
				listener{q, 0}.Wake("r", second.Ticket)
				if c.granted {
					q.Granted(second, time.Hour)
				}
				q.Show(first)
				if got := tries(q, first); got != c.tries {
					t.Errorf("it tries: %t, want %t", got, c.tries)
				}
				if got := n.enqueued(); len(got) != c.sent {
					t.Errorf("the node has %d tickets, want %d", len(got), c.sent)
				}
				if !c.granted {
					q.Granted(second, time.Hour)
				}
				time.Sleep(2 * time.Second) // the node's answers
			})
		})
	}
}

// A request that was passed before its first try is also known to the nodes: they get its ticket with that try, and
// need it no second time.
func TestWhoIsPassedBeforeItsTrySendsItsTicket(t *testing.T) {
	for _, tried := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := &slowNode{}
			q := newQueue(n)
			first, err := q.Enqueue("r", "", "")
			if err != nil {
				t.Fatal(err)
			}
			second, err := q.Enqueue("r", "", "")
			if err != nil {
				t.Fatal(err)
			}
			want := []node.Ticket{second.Ticket}
			if tried {
				tries(q, first)
			} else {
				want = append(want, first.Ticket)
			}
			listener{q, 0}.Wake("r", second.Ticket)
			if got := n.enqueued(); !slices.Equal(got, want) {
				t.Errorf("tried before: %t, and the node has the tickets %+v", tried, got)
			}
			q.Granted(second, time.Hour)
			if tries(q, first) { // the release of the lease that was granted wakes it
				t.Errorf("tried before: %t, and it tries beside that lease", tried)
			}
			time.Sleep(2 * time.Second)
		})
	}
}

// A try should follow a release, but reaches the nodes before it by another connection. It is made again when the
// release has ended, because the nodes wake nobody for that release, and the pause after a lease is long.
func TestATryThatOvertakesItsRelease(t *testing.T) {
	for name, c := range map[string]struct {
		met        Met
		endsFirst  bool
		triesAgain bool
	}{
		"the try ends first":                 {MetLease, false, true},
		"the release ends first":             {MetLease, true, true},
		"others are first":                   {MetQueue, false, false},
		"others are first, the release ends": {MetQueue, true, false},
		"no quorum":                          {MetNoQuorum, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(&slowNode{}, &slowNode{}, &slowNode{})
				w, err := q.Enqueue("r", "", "")
				if err != nil || !tries(q, w) {
					t.Fatal(err)
				}
				q.Postpone(w, time.Hour, MetLease)
				ended := q.Released("r")
				if !tries(q, w) {
					t.Fatal("it does not try behind the release")
				}
				if c.endsFirst {
					ended()
				}
				q.Postpone(w, time.Hour, c.met)
				if !c.endsFirst {
					if tries(q, w) {
						t.Error("it tries while the release is under way")
					}
					ended()
				}
				if again := tries(q, w); again != c.triesAgain {
					t.Errorf("it tries again: %t", again)
				}
				q.Postpone(w, time.Hour, MetLease)
				if tries(q, w) {
					t.Error("it tries for an earlier release")
				}
			})
		})
	}
}

// An interruption comes while a request tries. It ends the request's wait when the request waits again, because its
// cause was there before the try or came in the middle of it.
func TestInterruptEndsATryingRequestsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(&slowNode{})
		enqueue := func() *Waiter {
			w, err := q.Enqueue("r", "", "key")
			if err != nil {
				t.Fatal(err)
			}
			return w
		}
		await := func(w *Waiter) error {
			_, err := q.Await(t.Context(), time.Now().Add(time.Minute), w)
			return err
		}
		w := enqueue()
		if err := await(w); err != nil {
			t.Fatal(err)
		}
		q.Interrupt()
		q.Postpone(w, time.Second, MetQueue)
		if err := await(w); !errors.Is(err, ErrInterrupted) {
			t.Errorf("the wait after the try ended with %v", err)
		}
		q.Leave(w, ComesAgain)
		if again := enqueue(); again != w {
			t.Error("the request that comes again has another place")
		}
		if err := await(w); err != nil {
			t.Errorf("the request that came after the interruption: %v", err)
		}
	})
}

// The request of a place that lingers here may have got its lease at another server. So the place takes no wake from
// the next waiter here: neither that of a release, nor the one right behind a release through this server.
func TestAPlaceThatLingersTakesNoWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(&slowNode{})
		lingers, err := q.Enqueue("r", "", "key")
		if err != nil {
			t.Fatal(err)
		}
		next, err := q.Enqueue("r", "", "")
		if err != nil || !tries(q, lingers) {
			t.Fatal(err)
		}
		q.Postpone(lingers, time.Minute, MetLease)
		q.Leave(lingers, ComesAgain)
		if tries(q, next) {
			t.Error("the next one does not know when the lease ends")
		}
		for name, wake := range map[string]func(){
			"a release":               func() { listener{q, 0}.Wake("r", next.Ticket) },
			"the end of the key wait": func() { listener{q, 0}.Wake("r", lingers.Ticket) },
			"its own release":         func() { q.Released("r")() },
			"a new subscription":      func() { listener{q, 0}.Subscribed() },
		} {
			wake()
			if !tries(q, next) {
				t.Errorf("%s wakes nobody", name)
			}
			q.Postpone(next, time.Minute, MetLease)
		}
		if q.AsksBehind("r") != q.server {
			t.Error("the nodes would wake a server that asks by itself")
		}
		q.Leave(next, GivesUp)
		if q.AsksBehind("r") != "" {
			t.Error("the nodes wake nobody for a place without a request")
		}
		time.Sleep(LingerTime)
	})
}

// A server is stopped for longer than its tickets live. They are restored afterwards, even if another operation made
// the server known to the node again before its heartbeat. The first waiter then tries at once, because the resource
// may have become free while the node had nobody to wake.
func TestTicketsAreRestoredAfterAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &amnesiac{tickets: map[string]bool{}}
		q := newQueue(n)
		first, err := q.Enqueue("r", "", "")
		if err != nil || !tries(q, first) {
			t.Fatal(err)
		}
		q.Postpone(first, time.Minute, MetLease)
		if _, err := q.Enqueue("r", "", ""); err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		expiry := q.beat(ctx, 0, time.Now().Add(ticketTTL))
		clear(n.tickets)
		time.Sleep(ticketTTL + time.Millisecond) // the server is stopped
		if _, err := q.Enqueue("r", "", ""); err != nil {
			t.Fatal(err)
		}
		q.beat(ctx, 0, expiry)
		synctest.Wait()
		if len(n.tickets) != 3 {
			t.Errorf("the node has %d of 3 tickets", len(n.tickets))
		}
		if !tries(q, first) {
			t.Error("the first waiter does not ask again")
		}
		clear(n.tickets)
		q.beat(ctx, 0, time.Now().Add(ticketTTL)) // it was on time
		if len(n.tickets) != 0 {
			t.Errorf("%d tickets were sent again", len(n.tickets))
		}
	})
}

// The tickets of a server that stops live for ticketTTL from its stop on.
func TestAServerThatStopsKeepsItsTicketsAlive(t *testing.T) {
	n := &beaten{}
	q := newQueue(n)
	if _, err := q.Enqueue("r", "", "key"); err != nil {
		t.Fatal(err)
	}
	q.Stop()
	if n.beats != 1 {
		t.Errorf("%d heartbeats at the stop", n.beats)
	}
}
