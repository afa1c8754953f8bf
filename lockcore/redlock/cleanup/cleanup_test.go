package cleanup

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/internal/fakenode"
)

// cleanupOf starts a clean-up that sends one release to a fake node, and returns both.
func cleanupOf(until time.Duration, again Recheck, script func(op node.Op) (time.Duration, node.Reply)) (*fakenode.Node, *Cleaner) {
	fake := fakenode.New("fake")
	fake.Answer(script)
	c := New([]node.Node{fake})
	c.Send(0, node.Op{Kind: node.OpRelease, Resource: "r", Owner: "l"}, time.Now().Add(until), again)
	return fake, c
}

func TestCleanerRepeatsUntilAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times := 0
		fake, c := cleanupOf(time.Minute, Never, func(node.Op) (time.Duration, node.Reply) {
			if times++; times < 5 {
				return time.Millisecond, node.Reply{Outcome: node.Failed, Err: node.ErrNodeDown}
			}
			return time.Millisecond, node.Reply{Outcome: node.NotHeld}
		})
		time.Sleep(50 * time.Second)
		if got := len(fake.Ops(node.OpRelease)); got != 5 || c.Pending() != 0 {
			t.Errorf("sent %d times, %d pending", got, c.Pending())
		}
	})
}

func TestCleanerStopsAtTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, c := cleanupOf(10*time.Second, Never, fakenode.Always(node.Reply{Outcome: node.Failed, Err: node.ErrNodeDown}))
		time.Sleep(11 * time.Second)
		synctest.Wait()
		sent := len(fake.Ops(node.OpRelease))
		// 20 ms doubled up to 2 s, within 10 s: the pace is bounded both ways.
		if sent < 9 || sent > 14 || c.Pending() != 0 {
			t.Errorf("sent %d times in 10 s, %d pending", sent, c.Pending())
		}
		time.Sleep(time.Minute)
		if more := len(fake.Ops(node.OpRelease)); more != sent {
			t.Errorf("sent %d times more after the vote had expired", more-sent)
		}
	})
}

// A release that found no vote is repeated while the vote may still be granted.
func TestCleanerRepeatsWhatIsUncertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, c := cleanupOf(3*time.Second, Always, fakenode.Always(node.Reply{Outcome: node.NotHeld}))
		time.Sleep(4 * time.Second)
		if sent := len(fake.Ops(node.OpRelease)); sent < 5 || c.Pending() != 0 {
			t.Errorf("sent %d times, %d pending", sent, c.Pending())
		}
		found, c := cleanupOf(time.Minute, Always, fakenode.Always(node.Reply{Outcome: node.Granted}))
		time.Sleep(time.Minute)
		if sent := len(found.Ops(node.OpRelease)); sent != 1 || c.Pending() != 0 {
			t.Errorf("sent %d times after it was found, %d pending", sent, c.Pending())
		}
	})
}

// A release is sent once more, after a while, to a node that may still get the lock.
func TestCleanerRechecksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, c := cleanupOf(time.Minute, Once, fakenode.Always(node.Reply{Outcome: node.NotHeld}))
		time.Sleep(latePause)
		if sent := len(fake.Ops(node.OpRelease)); sent != 1 {
			t.Errorf("sent %d times too early", sent)
		}
		time.Sleep(time.Minute)
		if sent := len(fake.Ops(node.OpRelease)); sent != 2 || c.Pending() != 0 {
			t.Errorf("sent %d times, %d pending", sent, c.Pending())
		}
	})
}

// While a node is down, only one of many operations is sent, to find out whether it replies. When it does, the others
// follow within some round trips. Operations whose time is over are dropped before.
func TestCleanerSparesADeadNode(t *testing.T) {
	const many = 1000
	for _, c := range []struct {
		name  string
		after time.Duration
		first node.Reply // when the node is back
	}{
		{"it answers", time.Millisecond, node.Reply{Outcome: node.Granted}},
		{"the operation that tries gets no answer in its time", 5 * time.Second, node.Reply{Outcome: node.Failed, Err: context.DeadlineExceeded}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var up atomic.Bool
				back := 0
				fake := fakenode.New("dead")
				fake.Answer(func(node.Op) (time.Duration, node.Reply) {
					if !up.Load() {
						return time.Millisecond, node.Reply{Outcome: node.Failed, Err: node.ErrNodeDown}
					}
					if back++; back == 1 {
						return c.after, c.first
					}
					return time.Millisecond, node.Reply{Outcome: node.Granted}
				})
				cleaner := New([]node.Node{fake})
				for i := range many {
					until := time.Minute
					switch {
					case i == many-1: // it comes last, and is the one that tries
						time.Sleep(5 * time.Millisecond)
						until = 23 * time.Second
					case i%2 == 0:
						until = 10 * time.Second
					}
					cleaner.Send(0, node.Op{Kind: node.OpRelease, Resource: "r", Owner: "l"}, time.Now().Add(until), Never)
				}
				time.Sleep(20 * time.Second)
				synctest.Wait()
				if sent := len(fake.Ops(node.OpRelease)); sent < many+10 || sent > many+20 {
					t.Errorf("%d operations were sent %d times to a node that was down for 20 s", many, sent)
				}
				if pending := cleaner.Pending(); pending != many/2 {
					t.Errorf("%d operations are pending, want %d", pending, many/2)
				}
				up.Store(true)
				time.Sleep(c.after + 2*maxPause + 100*time.Millisecond)
				if pending := cleaner.Pending(); pending != 0 {
					t.Errorf("%d operations are pending after the node came back", pending)
				}
			})
		})
	}
}

// While a node was down, the pauses between tries grew, and the waiting operations expired. When an operation fails
// later, for example because a connection broke, it is repeated at once.
func TestCleanerForgetsAnEarlierOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		fake, c := cleanupOf(20*time.Second, Never, func(node.Op) (time.Duration, node.Reply) {
			if !up.Load() {
				return time.Millisecond, node.Reply{Outcome: node.Failed, Err: node.ErrNodeDown}
			}
			return time.Millisecond, node.Reply{Outcome: node.Granted}
		})
		time.Sleep(time.Minute)
		if c.Pending() != 0 {
			t.Fatalf("%d pending after their time", c.Pending())
		}
		before := len(fake.Ops(node.OpRelease))
		c.Send(0, node.Op{Kind: node.OpRelease, Resource: "r", Owner: "l"}, time.Now().Add(time.Minute), Never)
		time.Sleep(5 * time.Millisecond)
		up.Store(true)
		time.Sleep(2 * firstPause)
		if sent := len(fake.Ops(node.OpRelease)) - before; sent != 2 || c.Pending() != 0 {
			t.Errorf("sent %d times, %d pending", sent, c.Pending())
		}
	})
}

func TestCleanerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := fakenode.New("dead")
		c := New([]node.Node{fake})
		c.bound = 3
		for range 5 {
			c.Send(0, node.Op{Kind: node.OpRelease}, time.Now().Add(time.Minute), Never)
		}
		if c.Pending() != 3 {
			t.Errorf("%d pending", c.Pending())
		}
	})
}

func TestCleanerCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := cleanupOf(time.Minute, Never, fakenode.Always(node.Reply{Outcome: node.Failed, Err: node.ErrNodeDown}))
		time.Sleep(10 * time.Second) // the pauses between two tries have grown
		synctest.Wait()
		began := time.Now()
		c.Close(t.Context())
		if took := time.Since(began); took != 0 || c.Pending() != 0 {
			t.Errorf("closing took %s, %d pending", took, c.Pending())
		}
		c.Close(t.Context()) // a second close does nothing
		c.Send(0, node.Op{Kind: node.OpRelease}, time.Now().Add(time.Minute), Never)
		if c.Pending() != 0 {
			t.Errorf("a closed cleaner took a release: %d pending", c.Pending())
		}

		_, unanswered := cleanupOf(time.Minute, Never, func(node.Op) (time.Duration, node.Reply) { return -1, node.Reply{} })
		closing, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began = time.Now()
		unanswered.Close(closing)
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("closing while a node does not answer took %s", took)
		}
	})
}

// An operation that is no longer wanted is dropped, even if it was the one to probe a node that is down. The others
// are sent when the node is back.
func TestCleanerDropsWhatIsNotWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		fake := fakenode.New("fake")
		fake.Answer(func(node.Op) (time.Duration, node.Reply) {
			if !up.Load() {
				return time.Millisecond, node.Reply{Outcome: node.Failed, Err: node.ErrNodeDown}
			}
			return time.Millisecond, node.Reply{Outcome: node.Granted}
		})
		c := New([]node.Node{fake})
		var unwanted atomic.Bool
		through := func(op *node.Op, i int, sink node.Sink) bool {
			if unwanted.Load() {
				return false
			}
			fake.Submit(op, i, sink)
			return true
		}
		const others = 5
		for range others {
			c.Send(0, node.Op{Kind: node.OpRelease, Resource: "r", Owner: "l"}, time.Now().Add(time.Minute), Never)
			c.SendThrough(through, 0, node.Op{Kind: node.OpDequeue, Resource: "r"}, time.Now().Add(time.Minute), Never)
		}
		time.Sleep(10 * time.Second)
		unwanted.Store(true)
		up.Store(true)
		before := len(fake.Ops(node.OpDequeue))
		time.Sleep(10 * time.Second)
		if after := len(fake.Ops(node.OpDequeue)); after != before || c.Pending() != 0 {
			t.Errorf("%d operations were sent that nobody wants; %d are pending", after-before, c.Pending())
		}
	})
}
