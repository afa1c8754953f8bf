package sets_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// distant is a Model behind a network of some milliseconds.
type distant struct {
	*nodetest.Model
	cut *atomic.Bool // for every server

	mu  sync.Mutex
	rng *rand.Rand
}

var errCut = errors.New("no way to the node")

// trip returns the time of a message in one direction, about 4 ms.
func (n *distant) trip() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Millisecond + time.Duration(n.rng.Int64N(int64(6*time.Millisecond)))
}

// far calls f on the node after one trip, and returns after another.
func (n *distant) far(f func() error) error {
	if n.cut.Load() {
		return errCut
	}
	time.Sleep(n.trip())
	err := f()
	time.Sleep(n.trip())
	return err
}

func (n *distant) Observe(ctx context.Context) (seen node.Observation, err error) {
	err = n.far(func() error { seen, err = n.Model.Observe(ctx); return err })
	return seen, err
}

func (n *distant) InstallEpoch(ctx context.Context, epoch node.Epoch) (marks node.Marks, err error) {
	err = n.far(func() error { marks, err = n.Model.InstallEpoch(ctx, epoch); return err })
	return marks, err
}

func (n *distant) Counters(ctx context.Context, epoch node.Epoch, resources []string) (counters []fencing.Token, err error) {
	err = n.far(func() error { counters, err = n.Model.Counters(ctx, epoch, resources); return err })
	return counters, err
}

func (n *distant) Quarantine(ctx context.Context, note string) error {
	return n.far(func() error { return n.Model.Quarantine(ctx, note) })
}

func (n *distant) Stage(ctx context.Context, a node.Admission) error {
	return n.far(func() error { return n.Model.Stage(ctx, a) })
}

func (n *distant) Load(ctx context.Context, a node.Admission, locks []node.CarriedLock) error {
	return n.far(func() error { return n.Model.Load(ctx, a, locks) })
}

func (n *distant) Admit(ctx context.Context, a node.Admission) error {
	return n.far(func() error { return n.Model.Admit(ctx, a) })
}

// seeded is entropy that repeats.
type seeded struct {
	mu  sync.Mutex
	rng *rand.ChaCha8
}

func (s *seeded) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.Read(b)
}

// duelTTL is so long that a second wait would be noticed.
const duelTTL = 10 * time.Second

// duel is five nodes and three servers.
type duel struct {
	*testing.T
	models  []*nodetest.Model
	cuts    []*atomic.Bool
	servers []*locker
}

func newDuel(t *testing.T, seed uint64) *duel {
	t.Helper()
	d := &duel{T: t}
	for i := range 5 {
		d.models = append(d.models, nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprintf("n%d", i+1)}))
		d.cuts = append(d.cuts, new(atomic.Bool))
	}
	for k := range uint64(3) {
		var nodes []node.Node
		for i, m := range d.models {
			nodes = append(nodes, &distant{Model: m, cut: d.cuts[i], rng: rand.New(rand.NewPCG(seed<<8|k, uint64(i)))})
		}
		switch k { // every server lists them in another order
		case 1:
			slices.Reverse(nodes)
		case 2:
			nodes = append(nodes[2:], nodes[:2]...)
		}
		l, err := newLocker(sets.Config{
			New: true, MaxTTL: duelTTL, WatchInterval: 20 * time.Millisecond, NodeTimeout: 20 * time.Millisecond,
			Entropy: func(int) io.Reader {
				return &seeded{rng: rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(k)})}
			},
		}, nodes)
		if err != nil {
			t.Fatal(err)
		}
		d.servers = append(d.servers, l)
	}
	return d
}

// run starts the servers. The function that it returns stops them.
func (d *duel) run() (stop func()) {
	ctx, cancel := context.WithCancel(d.Context())
	var running sync.WaitGroup
	for _, l := range d.servers {
		running.Go(func() { _ = l.Run(ctx) })
	}
	return func() { cancel(); running.Wait() }
}

// within waits until every server sees n nodes vote.
func (d *duel) within(limit time.Duration, voting int) {
	d.Helper()
	began := time.Now()
	for time.Sleep(time.Second); ; time.Sleep(time.Millisecond) { // what happened has been seen
		least := len(d.models)
		for _, l := range d.servers {
			least = min(least, l.Status().Voting)
		}
		passed := time.Since(began)
		switch {
		case least >= voting:
			return
		case passed > limit:
			d.Fatalf("after %s only %d nodes vote: %+v\n%s\n%s\n%s\n%s\n%s", passed, least, d.servers[0].Status(),
				d.models[0], d.models[1], d.models[2], d.models[3], d.models[4])
		}
	}
}

// cut cuts nodes off, or lets them come back.
func (d *duel) cut(off bool, nodes ...int) {
	for _, i := range nodes {
		d.cuts[i].Store(off)
	}
}

func (d *duel) restart(nodes ...int) {
	for _, i := range nodes {
		d.models[i].Restart(true)
	}
}

// Three servers bootstrap the cluster again at the same moment. Their network is slow compared with their watch
// interval, and some nodes restarted while others missed a bootstrap. Whichever server wins, no wait is repeated.
func TestFoundersThatMeet(t *testing.T) { foundersMeet(t, 1) }

func TestSoakFoundersThatMeet(t *testing.T) {
	testenv.Long(t, "founders that meet in a way that seven more seeds have")
	foundersMeet(t, 8)
}

func foundersMeet(t *testing.T, seeds uint64) {
	t.Helper()
	testenv.Computes(t)
	const wait, soon = duelTTL + duelTTL/100 + 2*time.Millisecond, 2 * time.Second
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDuel(t, seed)
				defer d.run()()
				d.within(soon, 5) // a new cluster need not wait

				// The last two are missed a bootstrap on the others, of which one
				// alone keeps its admission when they come back.
				d.cut(true, 3, 4)
				d.restart(0, 1, 2)
				d.within(wait+soon, 3)
				d.restart(1, 2)
				d.cut(false, 3, 4)
				d.within(wait+soon, 4)
			})
		})
	}
}
