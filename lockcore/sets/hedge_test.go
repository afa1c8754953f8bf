package sets_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// A request under an idempotency key is repeated at other servers while it still waits at the first, because its
// client has heard nothing from there. Whichever of them is granted, its response may be lost. The others find the
// lease at once; otherwise it would be idle until they ask again.
func TestAKeyThatWaitsAtTwoServers(t *testing.T) {
	requests := map[string]lockcore.Request{
		"one resource":      {Resource: "r"},
		"several resources": {Resources: []string{"q", "r", "s"}},
		"a slot":            {Resource: "r", Slots: 1},
		"one of slots":      {Resource: "r", Slots: 2},
	}
	for name, req := range requests {
		for _, servers := range []int{2, 3} {
			for _, passed := range []time.Duration{time.Second / 2, 3 * time.Second, 10 * time.Second, 20 * time.Second} {
				t.Run(fmt.Sprintf("%s, %d servers, released %s after the last asked", name, servers, passed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						a, stop := newArena(t, 3, servers)
						defer func() { stop(); time.Sleep(time.Minute) }()
						inTheWay := lockcore.Request{Resource: "r", Slots: req.Slots, TTL: time.Minute}
						held := a.must(a.servers[0], inTheWay)
						for range req.Slots - 1 {
							a.must(a.servers[0], inTheWay)
						}
						req := req
						req.TTL, req.Wait, req.IdempotencyKey = 30*time.Second, time.Minute, "key"
						granted := make(chan lockcore.Lease, servers)
						for _, server := range a.servers {
							go func() { granted <- a.must(server, req) }()
							time.Sleep(300 * time.Millisecond)
						}
						time.Sleep(passed)
						released := time.Now()
						if err := a.servers[0].Release(t.Context(), held.ID); err != nil {
							t.Fatal(err)
						}
						first := <-granted
						for range servers - 1 {
							next := <-granted
							if took := time.Since(released); took > soon || next.Token != first.Token || fmt.Sprint(next.Parts) != fmt.Sprint(first.Parts) {
								t.Errorf("granted %+v, and %+v after %s", first, next, took)
							}
						}
					})
				})
			}
		}
	}
}
