package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// bootstrap bootstraps the cluster on the planned nodes (rule 12). It purges and closes a quorum of them
// before it opens any. After that, no other bootstrap and no late rejoin can make a quorum: if several
// servers bootstrap at the same time, only one succeeds, and no server purges a node that another has
// opened.
//
// If possible, all servers begin with the same node, so that this node decides between them. A server
// that finds another's epoch there stops, and leaves the nodes to the larger epoch. If it continued, it
// would open only a few nodes, and the others would miss the bootstrap and wait again.
func (c *Controller) bootstrap(ctx context.Context, p plan) error {
	epoch := c.bootstrapEpoch(p.largest)
	secrets, err := c.firstSecrets(epoch)
	if err != nil {
		return err
	}
	level := slog.LevelWarn
	if c.isUnused() { // a first start
		level = slog.LevelInfo
	}
	c.cfg.Logger.Log(ctx, level, "bootstrapping the cluster", "nodes", len(p.bootstrap), "new", p.fresh)
	a := node.Admission{
		Epoch: epoch, Bootstrapped: epoch, Cluster: c.cluster, Floor: c.bootstrapFloor(ctx),
		MaxTTL: c.cfg.granted(), Secrets: secrets, OnlyIfEmpty: p.fresh, Map: c.newMap(epoch),
	}
	nodes := c.byName(p.bootstrap)
	staged, failed := c.each(nodes, func(i int) error {
		return c.stage(ctx, i, pinTo(a, p.pins[i]))
	}, func([]int) bool { return true })
	if len(staged) < min(quorum.Of(len(c.nodes)), len(nodes)) || errors.Is(failed, node.ErrRaced) {
		return failed
	}
	admitted, failed := c.each(staged, func(i int) error {
		err := c.open(ctx, i, pinTo(a, p.pins[i]))
		if err == nil {
			c.audit(ctx, actBootstrap, i, slog.Bool("new", p.fresh), slog.Bool("force", c.cfg.Force), slog.Int64("epoch", int64(a.Epoch)))
		}
		return err
	}, func(opened []int) bool { return len(opened) == 0 })
	if len(admitted) == 0 {
		return failed
	}
	c.Learn(a.Epoch)
	c.cfg.Logger.Info("the cluster is bootstrapped", "nodes", len(admitted), "epoch", int64(a.Epoch), "floor", int64(a.Floor))
	return nil
}

// isUnused reports whether no node ever held anything, as far as this server has seen.
func (c *Controller) isUnused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.seen.used
}

// byName sorts nodes by name, which gives the same order on all servers.
func (c *Controller) byName(nodes []int) []int {
	return slices.SortedFunc(slices.Values(nodes), func(i, j int) int {
		return strings.Compare(c.nodes[i].Name(), c.nodes[j].Name())
	})
}

// bootstrapFloor returns a floor above every earlier token: the largest of the clock's floor, every
// high-water mark that a node still has, and the guard's mark.
func (c *Controller) bootstrapFloor(ctx context.Context) fencing.Token {
	now := time.Now()
	floor := node.FloorAt(now)
	raise := func(mark fencing.Token) {
		if node.Plausible(mark, now) {
			floor = max(floor, mark)
		}
	}
	c.mu.Lock()
	for i := range c.seen.nodes {
		if s := &c.seen.nodes[i]; s.fit() {
			raise(s.seen.Marks.HighWater)
		}
	}
	c.mu.Unlock()
	if c.cfg.Floor == nil {
		return floor
	}
	reading, cancel := context.WithTimeout(ctx, max(2*time.Second, c.cfg.callTimeout()))
	defer cancel()
	mark, err := c.cfg.Floor(reading)
	if err != nil {
		c.cfg.Logger.Warn("the guard's highest mark cannot be read: the tokens begin at the clock alone", "error", err)
		return floor
	}
	raise(mark)
	return floor
}

// each calls f for one node after the other, and returns the nodes for which f succeeded. If another server
// was faster on a node, each calls yield with the nodes done so far, and stops if yield returns true.
func (c *Controller) each(nodes []int, f func(int) error, yield func(done []int) bool) (done []int, failed error) {
	for _, i := range nodes {
		err := f(i)
		if err == nil {
			done = append(done, i)
			continue
		}
		failed = errors.Join(failed, fmt.Errorf("node %s: %w", c.nodes[i].Name(), err))
		if errors.Is(err, node.ErrRaced) && yield(done) {
			break
		}
	}
	return done, failed
}

// pinTo limits the admission to the state in which the node has waited. In any other state the admission
// must not touch the node (rule 10).
func pinTo(a node.Admission, to pin) node.Admission {
	a.Incarnation, a.Note = to.incarnation, to.note
	return a
}

// stage purges and closes node i. No other server can complete this admission, so a later failure need
// not undo it.
func (c *Controller) stage(ctx context.Context, i int, a node.Admission) error {
	return c.call(ctx, "staging", func(ctx context.Context) error { return c.nodes[i].Stage(ctx, a) })
}

// open completes the admission of node i.
func (c *Controller) open(ctx context.Context, i int, a node.Admission) error {
	return c.call(ctx, "admitting", func(ctx context.Context) error { return c.nodes[i].Admit(ctx, a) })
}

// rejoin admits the planned nodes again. Each of them needs its own reads.
func (c *Controller) rejoin(ctx context.Context, p plan) error {
	_, failed := c.each(p.rejoin, func(i int) error {
		err := c.rejoinOne(ctx, i, p.pins[i])
		if err == nil {
			c.audit(ctx, actAdmit, i)
		}
		return err
	}, func([]int) bool { return false })
	return failed
}

// rejoinOne carries out rules 7 to 11, 13 and 21 for one node. The pin was taken before the reads (rule
// 10).
func (c *Controller) rejoinOne(ctx context.Context, i int, pinned pin) error {
	c.mu.Lock()
	p := c.plan(time.Now())
	c.mu.Unlock()
	a := pinTo(node.Admission{Cluster: c.cluster, Epoch: c.rejoinEpoch(p.largest)}, pinned)
	readers, marks := c.installEpoch(ctx, p.admitted, a.Epoch)
	if err := c.checkReaders(readers, "took the epoch of the rejoin"); err != nil {
		return err
	}
	if !c.hasWaited(i, pinned, marks.MaxTTL) {
		return node.ErrRaced
	}
	c.Learn(a.Epoch)
	locks, err := c.readLocks(ctx, readers, a.Epoch)
	if err != nil {
		return err
	}
	a.Bootstrapped, a.Floor, a.MaxTTL, a.Secrets = marks.Bootstrapped, marks.HighWater, max(c.cfg.granted(), marks.MaxTTL), marks.Secrets
	a.Map = marks.Map
	if err := c.admit(ctx, i, a, locks); err != nil {
		return err
	}
	c.cfg.Logger.Info("node rejoined", "node", c.nodes[i].Name(), "epoch", int64(a.Epoch), "floor", int64(a.Floor), "locks", len(locks))
	return nil
}

// admit purges, loads and opens node i.
func (c *Controller) admit(ctx context.Context, i int, a node.Admission, locks []node.CarriedLock) error {
	if err := c.stage(ctx, i, a); err != nil {
		return err
	}
	for page := range slices.Chunk(locks, carryPage) {
		if err := c.call(ctx, "loading", func(ctx context.Context) error { return c.nodes[i].Load(ctx, a, page) }); err != nil {
			return err
		}
	}
	return c.open(ctx, i, a)
}

func (c *Controller) checkReaders(readers []int, did string) error {
	if r := quorum.Readers(len(c.nodes)); len(readers) < r {
		return fmt.Errorf("%d nodes %s, and %d are needed", len(readers), did, r)
	}
	return nil
}

// hasWaited checks rule 13 again, with the longest TTL in the records that were read.
func (c *Controller) hasWaited(i int, pinned pin, longest time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.seen.nodes[i]
	return s.quarantinedAs == pinned && s.waitLeft(withDrift(max(longest, c.cfg.MaxTTL)), time.Now()) == 0
}

// installEpoch installs a new epoch on the nodes and reads their marks (rules 7 and 8).
func (c *Controller) installEpoch(ctx context.Context, nodes []int, epoch node.Epoch) (readers []int, marks node.Marks) {
	read := make([]*node.Marks, len(c.nodes))
	c.forEach(ctx, nodes, func(ctx context.Context, i int) {
		got, err := c.nodes[i].InstallEpoch(ctx, epoch)
		if err == nil {
			read[i] = &got
		} else if stale, ok := errors.AsType[*node.StaleEpochError](err); ok {
			c.Learn(stale.Epoch)
		}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range read {
		if r == nil {
			continue
		}
		// The next rejoin may begin before the next observation, and its epoch must be larger.
		if seen := &c.seen.nodes[i].seen; seen.Epoch < epoch {
			seen.Epoch, seen.Marks.Secrets, seen.Marks.Bootstrapped = epoch, r.Secrets, r.Bootstrapped
		}
		if r.HighWater == 0 || node.Plausible(r.HighWater, time.Now()) {
			readers = append(readers, i)
			marks.HighWater = max(marks.HighWater, r.HighWater)
			marks.Bootstrapped = max(marks.Bootstrapped, r.Bootstrapped)
			marks.MaxTTL = max(marks.MaxTTL, min(r.MaxTTL, maxRecordedTTL))
			marks.Secrets = node.MergeSecrets(marks.Secrets, r.Secrets)
			marks.Map = laterMap(marks.Map, r.Map)
		}
	}
	c.adoptSecrets(time.Now())
	return readers, marks
}
