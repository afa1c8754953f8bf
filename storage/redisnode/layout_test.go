package redisnode_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/sets"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// Two servers with different lists of node sets never both grant. From the first start on the nodes know the whole
// list, and refuse a server with another one (rule 26). Otherwise a server that knows one set fewer would grant that
// set's resources on another set.
func TestServersWithOtherNodeSets(t *testing.T) {
	t.Parallel()
	servers := testenv.StartRedisN(t, 3)
	for _, c := range []struct{ name, one, other string }{
		{"one set fewer", "ab", "a"}, {"one set more", "a", "ab"},
		{"one of three fewer", "abc", "ac"}, {"one of three more", "ab", "abc"},
		{"another set", "ab", "bc"},
	} {
		for _, start := range []string{"one after the other", "at once"} {
			t.Run(c.name+", "+start, func(t *testing.T) {
				for _, s := range servers {
					s.FlushAll()
				}
				one := serveSets(t, servers, c.one)
				if start == "one after the other" {
					testenv.Eventually(t, 20*time.Second, func() error { return notReady(one) })
				}
				other := serveSets(t, servers, c.other)
				untilOneServes(t, one, other)
				byOne, byOther := granted(t, one), granted(t, other)
				both := 0
				for i := range byOne {
					if byOne[i] && byOther[i] {
						both++
					}
				}
				if both > 0 {
					t.Errorf("%d of %d resources are granted by both servers", both, names)
				}
				if start == "one after the other" && slices.Contains(byOne, false) {
					t.Errorf("the first server does not grant everything: %v", byOne)
				}
				if one.Status().Ready && other.Status().Ready {
					t.Error("both servers are ready")
				}
			})
		}
	}
}

// serveSets starts a server with the node sets of these letters; each set has one node.
func serveSets(t *testing.T, servers []*testenv.Redis, letters string) *sets.Locker {
	t.Helper()
	var lists [][]node.Node
	for _, letter := range letters {
		lists = append(lists, []node.Node{openNode(t, servers[letter-'a'].Addr(), redisnode.Options{Timeout: time.Second, CounterTTL: time.Hour})})
	}
	l, err := sets.New(sets.Config{MaxTTL: 10 * time.Second, NodeTimeout: time.Second, WatchInterval: 20 * time.Millisecond, New: true}, lists...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-stopped })
	return l
}

func notReady(l *sets.Locker) error {
	if s := l.Status(); !s.Ready {
		return errors.New(s.Reason)
	}
	return nil
}

// untilOneServes waits until one server is ready, and the other one has found out that its list differs, and says so.
// If both began at once, each may have claimed a set: then neither serves, and both say so.
func untilOneServes(t *testing.T, one, other *sets.Locker) {
	t.Helper()
	testenv.Eventually(t, 20*time.Second, func() error {
		refused := 0
		for _, l := range []*sets.Locker{one, other} {
			if says := fmt.Sprintf("%+v", l.Status()); strings.Contains(says, "other node sets") && strings.Contains(says, "fencelock sets") {
				refused++
			}
		}
		if refused == 0 && one.Status().Ready && other.Status().Ready {
			return nil // which the test finds
		}
		if refused == 0 {
			return fmt.Errorf("no server is refused:\n%+v\n%+v", one.Status(), other.Status())
		}
		if refused == 1 && !one.Status().Ready && !other.Status().Ready {
			return fmt.Errorf("no server is ready:\n%+v\n%+v", one.Status(), other.Status())
		}
		return nil
	})
}

const names = 24

// granted asks a server for leases of many resources, and returns those that it granted.
func granted(t *testing.T, l *sets.Locker) []bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var asked sync.WaitGroup
	got := make([]bool, names)
	for i := range names {
		asked.Go(func() {
			_, err := l.Acquire(ctx, lockcore.Request{Caller: lockcore.Everyone, Resource: fmt.Sprint("r", i)})
			got[i] = err == nil
		})
	}
	asked.Wait()
	return got
}
