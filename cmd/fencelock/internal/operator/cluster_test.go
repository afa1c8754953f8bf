package operator

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// late is the context of a process that does not get to run when it is about to look again.
type late struct{ context.Context }

func (l late) Err() error {
	time.Sleep(2 * clusterSettle)
	return l.Context.Err()
}

// A pause of the process does not count as time for which the nodes have stayed ready: await looks at them once more
// before it ends.
func TestAwaitOnALateMachine(t *testing.T) {
	for name, pausing := range map[string]func(ctx context.Context) context.Context{
		"late":    func(ctx context.Context) context.Context { return late{ctx} },
		"on time": func(ctx context.Context) context.Context { return ctx },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const seen = 4 // at the fourth look
				looks := 0
				status := func() lockcore.ClusterStatus {
					looks++
					return lockcore.ClusterStatus{Ready: looks >= seen, Reason: "2 of 3 nodes are unreachable"}
				}
				var out strings.Builder
				if err := (clusterTool{out: &out}).await(pausing(t.Context()), status, ready); err != nil {
					t.Errorf("%v, after %d looks", err, looks)
				}
				if looks <= seen {
					t.Errorf("it looked %d times, and the nodes are there since the fourth: they may change at once", looks)
				}
			})
		})
	}
}
