package redlock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// A listing shows a lock once, however late a reader's reply is. A lock that several readers have is listed by the
// first of them.
func TestAListingAsksTheEarlierReadersToTheEnd(t *testing.T) {
	for name, late := range map[string]time.Duration{"in time": roundTrip, "late": 20 * time.Millisecond, "never": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 3, redlock.Config{})
				c.spoil(0, func(_ node.Op, r node.Reply) (time.Duration, node.Reply) { return 20 * time.Millisecond, r })
				if _, err := c.Acquire(t.Context(), lockcore.Request{Resource: "r"}); err != nil {
					t.Fatal(err)
				}
				settle(time.Second)
				c.spoil(0, func(_ node.Op, r node.Reply) (time.Duration, node.Reply) { return late, r })
				locks, err := c.locker.Now().InspectAll(t.Context(), []string{"r"}, []int{0})
				if wrong := late < 0; len(locks) != 0 || (err != nil) != wrong {
					t.Errorf("%+v, %v; the earlier reader has listed it", locks, err)
				}
				locks, err = c.locker.Now().InspectAll(t.Context(), []string{"r"}, nil)
				if len(locks) != 1 || err != nil {
					t.Errorf("%+v, %v from the first reader", locks, err)
				}
			})
		})
	}
}
