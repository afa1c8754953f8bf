package lockcore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// disposalOf sends one release to a fake node and returns the node and the cleaner.
func disposalOf(until time.Duration, again recheck, script func(op Op) (time.Duration, Reply)) (*fakeNode, *cleaner) {
	node := &fakeNode{name: "node", script: script}
	c := newCleaner([]Node{node})
	c.send(0, Op{Kind: OpRelease, Resource: "r", Owner: "l"}, time.Now().Add(until), again)
	return node, c
}

// always answers every op alike.
func always(reply Reply) func(Op) (time.Duration, Reply) {
	return func(Op) (time.Duration, Reply) { return time.Millisecond, reply }
}

func (c *cleaner) pendingNow() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending
}

func TestCleanerRepeatsUntilAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times := 0
		node, c := disposalOf(time.Minute, recheckNever, func(Op) (time.Duration, Reply) {
			if times++; times < 5 {
				return time.Millisecond, Reply{Outcome: Failed, Err: ErrNodeDown}
			}
			return time.Millisecond, Reply{Outcome: NotHeld}
		})
		time.Sleep(50 * time.Second)
		if got := len(node.ops(OpRelease)); got != 5 || c.pendingNow() != 0 {
			t.Errorf("asked %d times, %d pending", got, c.pendingNow())
		}
	})
}

func TestCleanerStopsAtTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, c := disposalOf(10*time.Second, recheckNever, always(Reply{Outcome: Failed, Err: ErrNodeDown}))
		time.Sleep(11 * time.Second)
		synctest.Wait()
		asked := len(node.ops(OpRelease))
		// 20 ms doubled up to 2 s, within 10 s: the pace is bounded both ways.
		if asked < 9 || asked > 14 || c.pendingNow() != 0 {
			t.Errorf("asked %d times in 10 s, %d pending", asked, c.pendingNow())
		}
		time.Sleep(time.Minute)
		if more := len(node.ops(OpRelease)); more != asked {
			t.Errorf("asked %d times more after the vote had ended", more-asked)
		}
	})
}

// A release that found nothing is no answer while the vote may be given yet.
func TestCleanerRepeatsWhatIsUncertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, c := disposalOf(3*time.Second, recheckAlways, always(Reply{Outcome: NotHeld}))
		time.Sleep(4 * time.Second)
		if asked := len(node.ops(OpRelease)); asked < 5 || c.pendingNow() != 0 {
			t.Errorf("asked %d times, %d pending", asked, c.pendingNow())
		}
		found, c := disposalOf(time.Minute, recheckAlways, always(Reply{Outcome: Granted}))
		time.Sleep(time.Minute)
		if asked := len(found.ops(OpRelease)); asked != 1 || c.pendingNow() != 0 {
			t.Errorf("asked %d times after it was found, %d pending", asked, c.pendingNow())
		}
	})
}

// A node that may be told later yet is asked once more, after a while.
func TestCleanerRechecksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, c := disposalOf(time.Minute, recheckOnce, always(Reply{Outcome: NotHeld}))
		time.Sleep(latePause)
		if asked := len(node.ops(OpRelease)); asked != 1 {
			t.Errorf("asked %d times too early", asked)
		}
		time.Sleep(time.Minute)
		if asked := len(node.ops(OpRelease)); asked != 2 || c.pendingNow() != 0 {
			t.Errorf("asked %d times, %d pending", asked, c.pendingNow())
		}
	})
}

func TestCleanerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &fakeNode{name: "dead"}
		c := newCleaner([]Node{node})
		c.bound = 3
		for range 5 {
			c.send(0, Op{Kind: OpRelease}, time.Now().Add(time.Minute), recheckNever)
		}
		if c.pendingNow() != 3 || c.dropped != 2 {
			t.Errorf("%d pending, %d dropped", c.pendingNow(), c.dropped)
		}
	})
}

func TestCleanerCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, c := disposalOf(time.Minute, recheckNever, always(Reply{Outcome: Failed, Err: ErrNodeDown}))
		c.close(t.Context())
		if took := time.Since(began); took > time.Second || c.pendingNow() != 0 {
			t.Errorf("closing took %s, %d pending", took, c.pendingNow())
		}
		c.close(t.Context()) // again is nothing
		c.send(0, Op{Kind: OpRelease}, time.Now().Add(time.Minute), recheckNever)
		if c.dropped != 1 || c.pendingNow() != 0 {
			t.Errorf("a closed cleaner took a release: %d pending", c.pendingNow())
		}

		_, silent := disposalOf(time.Minute, recheckNever, func(Op) (time.Duration, Reply) { return -1, Reply{} })
		closing, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began = time.Now()
		silent.close(closing)
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("closing over a silent node took %s", took)
		}
	})
}
