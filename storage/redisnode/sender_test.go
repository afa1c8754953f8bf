package redisnode

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// A patient operation waits a moment, but no longer, to be sent together with another one. Other operations do not
// wait.
func TestPatientOperations(t *testing.T) {
	patient, urgent := job{op: &node.Op{Kind: node.OpEnqueue, Patient: true}}, job{op: &node.Op{Kind: node.OpRelease}}
	for name, c := range map[string]struct {
		first     job
		then      []job // each half a patience after the one before
		collected int
		after     time.Duration
	}{
		"alone":                       {patient, nil, 1, patience},
		"urgent":                      {urgent, []job{urgent}, 1, 0},
		"with an urgent one":          {patient, []job{urgent, urgent}, 2, patience / 2},
		"with another patient one":    {patient, []job{patient}, 2, patience},
		"only for as long as a first": {patient, []job{patient, patient}, 2, patience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &Node{queue: make(chan job, 8), closed: make(chan struct{}), opts: Options{}.withDefaults()}
				go func() {
					for _, j := range c.then {
						time.Sleep(patience/2 + time.Nanosecond)
						n.queue <- j
					}
				}()
				b, began := &batch{node: n}, time.Now()
				b.collect(c.first)
				if took := time.Since(began).Truncate(time.Microsecond); len(b.jobs) != c.collected || took != c.after {
					t.Errorf("%d operations after %v, want %d after %v", len(b.jobs), took, c.collected, c.after)
				}
				time.Sleep(2 * patience) // the other goroutine ends
			})
		})
	}
}

// After a node was closed, its patient operations do not wait.
func TestAClosedNodeIsNotPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{queue: make(chan job, 8), closed: make(chan struct{}), opts: Options{}.withDefaults()}
		close(n.closed)
		began := time.Now()
		(&batch{node: n}).collect(job{op: &node.Op{Patient: true}})
		if took := time.Since(began); took != 0 {
			t.Errorf("it waited %v", took)
		}
	})
}

// All operations of a call have the same epoch and map. Operations of kinds that have neither can be in any call.
func TestACallHasOneEpochAndMap(t *testing.T) {
	op := func(kind node.OpKind, epoch node.Epoch, byMap string) job {
		return job{op: &node.Op{Kind: kind, Epoch: epoch, Map: byMap, Owner: "L1"}}
	}
	for name, c := range map[string]struct {
		jobs []job
		sent int // in the first call
	}{
		"one epoch":                 {[]job{op(node.OpConfirm, 5, ""), op(node.OpConfirm, 5, "")}, 2},
		"another epoch":             {[]job{op(node.OpConfirm, 5, ""), op(node.OpConfirm, 6, "")}, 1},
		"none behind one":           {[]job{op(node.OpConfirm, 5, ""), op(node.OpConfirm, 0, "")}, 1},
		"one behind none":           {[]job{op(node.OpConfirm, 0, ""), op(node.OpConfirm, 5, "")}, 1},
		"one that needs none":       {[]job{op(node.OpRetract, 0, ""), op(node.OpConfirm, 5, ""), op(node.OpRead, 0, ""), op(node.OpConfirm, 5, "")}, 4},
		"another map":               {[]job{op(node.OpConfirm, 5, ""), op(node.OpRead, 0, "m")}, 1},
		"no map behind one":         {[]job{op(node.OpRead, 0, "m"), op(node.OpRead, 0, "")}, 1},
		"one that needs no map":     {[]job{op(node.OpRead, 0, "m"), op(node.OpRetract, 0, ""), op(node.OpRead, 0, "m")}, 3},
		"its own epoch is no other": {[]job{op(node.OpRead, 7, ""), op(node.OpConfirm, 5, "")}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			now, rest := (&batch{}).cut(c.jobs)
			if len(now) != c.sent || len(now)+len(rest) != len(c.jobs) {
				t.Errorf("%d operations were sent and %d are left, want %d sent of %d", len(now), len(rest), c.sent, len(c.jobs))
			}
		})
	}
}
