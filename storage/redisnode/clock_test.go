package redisnode_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/chaos"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/settings"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// clockMeter records the last report of one node's clock, and its jumps.
type clockMeter struct {
	mu    sync.Mutex
	ahead time.Duration
	jumps int
}

func (c *clockMeter) Vote(node.Outcome)    {}
func (c *clockMeter) NoAnswer()            {}
func (c *clockMeter) Confirm(node.Outcome) {}
func (c *clockMeter) Clock(ahead time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead = ahead
}

func (c *clockMeter) Jump(time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jumps++
}

func (c *clockMeter) reported() (time.Duration, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ahead, c.jumps
}

// The clock of one real Redis server is set forward. Its lock expires at once, but no other client gets the resource,
// because the node is quarantined before its next vote. It rejoins with the lease.
func TestServerWhoseClockIsSetIsQuarantined(t *testing.T) {
	testenv.Long(t, "a node whose clock was set and which is trusted")
	t.Parallel()
	dir := t.TempDir()
	library, err := chaos.BuildShim(dir)
	if err != nil {
		t.Fatal(err)
	}
	var servers []*testenv.Redis
	var clocks []*chaos.Clock
	for i := range 3 {
		clock, option := chaos.NewClock(t, dir, library, i)
		clocks = append(clocks, clock)
		servers = append(servers, testenv.StartRedis(t, option))
	}
	meters := map[string]*clockMeter{}
	q := joinQuorum(t, servers, func(c *sets.Config) {
		c.MaxTTL, c.NodeTimeout = 10*time.Second, time.Second // a busy machine may take its time
		c.Meters = func(node string) settings.Meter {
			meters[node] = &clockMeter{}
			return meters[node]
		}
	})
	q.awaitVoting(t, 3)
	first := meters[q.nodes[0].Name()]
	testenv.Eventually(t, 20*time.Second, func() error {
		if ahead, _ := first.reported(); ahead == 0 {
			return errors.New("no reading")
		}
		return nil
	})
	lease := q.take(t, "r")
	if err := clocks[0].Jump(time.Hour); err != nil {
		t.Fatal(err)
	}
	state := q.awaitState(t, 0, lockcore.NodeQuarantined)
	if !strings.Contains(state.Reason, "clock") {
		t.Errorf("the reason is %q", state.Reason)
	}
	extended := func() {
		t.Helper()
		testenv.Eventually(t, 9*time.Second, func() error {
			_, err := q.Extend(t.Context(), lease.ID, 10*time.Second)
			if errors.Is(err, lockcore.ErrNotHeld) {
				t.Fatal("the lease was lost")
			}
			return err
		})
	}
	testenv.Eventually(t, 40*time.Second, func() error {
		extended()
		if s := q.Status(); s.Voting < 3 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	// Of the other two one is killed: the quorum needs the first, which must have the lease.
	servers[1].Kill()
	q.awaitState(t, 1, lockcore.NodeUnreachable)
	extended()
	if _, err := q.Acquire(t.Context(), lockcore.Request{Resource: "r"}); !errors.Is(err, lockcore.ErrHeld) {
		t.Errorf("there is a second holder, or none: %v", err)
	}
	testenv.Eventually(t, 20*time.Second, func() error {
		if ahead, jumps := first.reported(); jumps != 1 || ahead < time.Hour-time.Minute {
			return fmt.Errorf("%d jumps, ahead by %s", jumps, ahead)
		}
		return nil
	})
}
