package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// Map returns the last known map of an admitted node of the set, even if this server does not know that
// map.
func (c *Controller) Map() node.Map {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen.last
}

// adoptMap adopts the map that was installed last on an admitted node. A wrong map is safe, because a
// node with another map refuses. The caller holds c.mu.
func (c *Controller) adoptMap(now time.Time) {
	var last node.Map
	admitted, differ := 0, false
	for i := range c.seen.nodes {
		s := &c.seen.nodes[i]
		if !s.admitted() {
			continue
		}
		if m := s.seen.Marks.Map; admitted == 0 || m != last {
			differ = admitted > 0
			last = laterMap(last, m)
		}
		admitted++
	}
	switch {
	case !differ:
		c.mixed = time.Time{}
	case c.mixed.IsZero():
		c.mixed = now
	}
	if admitted > 0 && last != c.mapped {
		c.mapped = last
		if c.cfg.Mapped != nil {
			c.cfg.Mapped(last)
		}
	}
}

// Shows reports whether at least R admitted nodes, as last observed, have maps that such accepts. No
// quorum can then have another map.
func (c *Controller) Shows(such func(mapName string) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for i := range c.seen.nodes {
		if s := &c.seen.nodes[i]; s.admitted() && such(s.seen.Marks.Map.Name) {
			n++
		}
	}
	return n >= quorum.Readers(len(c.nodes))
}

// OtherList reports whether the set has a map that this server does not know. It is also true until all
// nodes were observed, because one of them may have such a map.
func (c *Controller) OtherList() bool { return c.otherList.Load() }

// mapFollows reports whether the nodes must get another map without an operator's command.
func (c *Controller) mapFollows() bool {
	if c.cfg.NextMap == nil || c.cfg.Watching {
		return false
	}
	c.mu.Lock()
	mapped := c.mapped
	c.mu.Unlock()
	_, follows := c.cfg.NextMap(mapped)
	return follows
}

// nextMap returns the map that NextMap puts in place of the node's map.
func (c *Controller) nextMap(marks node.Marks) (node.Map, error) {
	next, follows := c.cfg.NextMap(marks.Map)
	if !follows {
		return node.Map{}, node.ErrRaced
	}
	return next, nil
}

// mapsDiffer reports whether the nodes have had different maps for so long that the change of maps must
// have stopped half-way.
func (c *Controller) mapsDiffer(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.mixed.IsZero() && now.Sub(c.mixed) > c.cfg.inTouch()
}

// laterMap returns the map that was installed later. Maps of one epoch may differ in their generation: a
// version of the program without generations admits a node with the other nodes' map, but writes no
// generation.
func laterMap(a, b node.Map) node.Map {
	if cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Generation, b.Generation)) < 0 {
		return b
	}
	return a
}

// newMap returns the map of a set that is bootstrapped in this epoch.
func (c *Controller) newMap(epoch node.Epoch) (m node.Map) {
	if c.cfg.NewMap != nil {
		m = c.cfg.NewMap()
	}
	if m.Name != "" {
		m.Epoch = epoch
	}
	return m
}

// sameMap completes a change that stopped half-way.
func sameMap(marks node.Marks) (node.Map, error) { return marks.Map, nil }

// ChangeMap changes the map of the set. change gets the nodes' marks with the present map, and returns
// the next map, whose epoch ChangeMap sets. If change returns an error, the map stays, and ChangeMap returns
// this error.
//
// The change is a compare-and-set over a quorum. ChangeMap installs an epoch on at least R nodes, which
// no other change can then use, and then writes the next map to a quorum of nodes that are still in that
// epoch. So the next map directly follows the present one. After any other error, the change may have
// been made, or may still be made later.
func (c *Controller) ChangeMap(ctx context.Context, change func(node.Marks) (node.Map, error)) (node.Map, error) {
	next, err := c.changeMap(ctx, change)
	if err == nil {
		c.nudgeAll()
	}
	return next, err
}

// advanceMap changes the map of the set as a step of this server. It requests another observation after its own,
// because the next step of a first start depends on the other sets, which are about to show the same map. The two
// are not at the same moment: of two looks that overlap, only one counts.
func (c *Controller) advanceMap(ctx context.Context, what string, change func(node.Marks) (node.Map, error)) {
	_, err := c.changeMap(ctx, change)
	c.finish(ctx, what, err)
	if err == nil {
		c.nudgeAll()
	}
}

// nudgeAll requests an observation of every node now.
func (c *Controller) nudgeAll() {
	for i := range c.nodes {
		signal(c.nudges[i])
	}
}

// changeMap is ChangeMap for a caller that observes the nodes afterwards.
func (c *Controller) changeMap(ctx context.Context, change func(node.Marks) (node.Map, error)) (node.Map, error) {
	readers, marks, epoch, err := c.fence(ctx)
	if err != nil {
		return node.Map{}, err
	}
	next, err := change(marks)
	if err != nil {
		return node.Map{}, err
	}
	next.Epoch = epoch
	if err := c.onQuorum(ctx, readers, "took the map", func(ctx context.Context, i int) error {
		return c.nodes[i].InstallMap(ctx, next)
	}); err != nil {
		return node.Map{}, err
	}
	next.Floor = max(next.Floor, marks.Map.Floor)
	return next, nil
}

// fence installs a new epoch on at least R nodes, and returns their marks.
func (c *Controller) fence(ctx context.Context) (readers []int, marks node.Marks, epoch node.Epoch, err error) {
	c.mu.Lock()
	p := c.plan(time.Now())
	c.mu.Unlock()
	epoch = c.rejoinEpoch(p.largest)
	readers, marks = c.installEpoch(ctx, p.admitted, epoch)
	if err := c.checkReaders(readers, "took the epoch"); err != nil {
		return nil, marks, epoch, err
	}
	c.Learn(epoch)
	return readers, marks, epoch, nil
}

// onQuorum calls f for the nodes. The error is nil if f succeeded for a quorum.
func (c *Controller) onQuorum(ctx context.Context, nodes []int, did string, f func(context.Context, int) error) error {
	var done atomic.Int64
	failed := make([]error, len(c.nodes))
	c.forEach(ctx, nodes, func(ctx context.Context, i int) {
		if failed[i] = f(ctx, i); failed[i] == nil {
			done.Add(1)
		}
	})
	if q := quorum.Of(len(c.nodes)); int(done.Load()) < q {
		return fmt.Errorf("%d nodes %s, and %d are needed: %w", done.Load(), did, q, errors.Join(failed...))
	}
	return nil
}

// ErrOtherMap: the set does not have the expected map.
var ErrOtherMap = errors.New("the node set has another map")

// ReadLocks reads the locks of a set whose resources move: every resource that is locked on a node, with
// the lease that it may have. The set must have the map with this name, under which no resource that
// moves is granted.
//
// In doubt the resource is locked without a lease. A lease may be live although the nodes that could be
// read do not show enough of it for a rejoin, and then it must not meet another lease.
func (c *Controller) ReadLocks(ctx context.Context, name string) ([]node.CarriedLock, error) {
	readers, marks, epoch, err := c.fence(ctx)
	switch {
	case err != nil:
		return nil, err
	case marks.Map.Name != name:
		return nil, ErrOtherMap
	}
	read, err := c.readState(ctx, readers, epoch)
	if err != nil {
		return nil, err
	}
	n := len(c.nodes)
	locks := make([]node.CarriedLock, len(read.resources))
	for k, resource := range read.resources {
		locks[k] = carry(resource, read.surveys, quorum.Readers(n), 0, read.counters[k])
		if locks[k].Owner == "" {
			locks[k] = block(locks[k], read.surveys, quorum.Of(n)-(n-read.readers))
		}
	}
	return locks, nil
}

// ListLocks returns the locks of one admitted node, without a new epoch. It is an estimate of the result
// of ReadLocks.
func (c *Controller) ListLocks(ctx context.Context) ([]node.CarriedLock, error) {
	c.mu.Lock()
	p := c.plan(time.Now())
	c.mu.Unlock()
	for _, i := range p.admitted {
		if locks := c.survey(ctx, i, p.epoch); locks != nil {
			return slices.Collect(maps.Values(locks)), nil
		}
	}
	return nil, errors.New("no node has listed its locks")
}

// block locks the resource without a lease if an owner has locks on at least votes readers.
func block(lock node.CarriedLock, surveys []survey, votes int) node.CarriedLock {
	for _, s := range surveys {
		locks := locksOf(s[lock.Resource].Owner, lock.Resource, surveys)
		if len(locks) < max(1, votes) {
			continue
		}
		lock.Owner, lock.Grant, lock.TTL = node.NoLease(locks[0].Owner), lock.Counter, locks[0].TTL
		for _, one := range locks {
			lock.Remaining = max(lock.Remaining, one.Remaining)
		}
	}
	return lock
}

// Receive writes the locks of resources that move to this set to a quorum.
func (c *Controller) Receive(ctx context.Context, name string, locks []node.CarriedLock) error {
	c.mu.Lock()
	p := c.plan(time.Now())
	c.mu.Unlock()
	pages := slices.Collect(slices.Chunk(locks, carryPage))
	var longest time.Duration
	for _, lock := range locks {
		longest = max(longest, lock.TTL)
	}
	return c.onQuorum(ctx, p.admitted, "took the locks", func(calling context.Context, i int) error {
		if err := c.nodes[i].RaiseMaxTTL(calling, longest); err != nil { // rule 13
			return err
		}
		for _, page := range pages { // each page has the time limit of one call, however many pages there are
			if err := c.receive(ctx, i, p.epoch, name, page); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *Controller) receive(ctx context.Context, i int, epoch node.Epoch, name string, page []node.CarriedLock) error {
	calling, cancel := context.WithTimeout(ctx, c.cfg.callTimeout())
	defer cancel()
	return c.nodes[i].Receive(calling, epoch, name, page)
}

// Retry calls f until it succeeds, up to six times, and observes the nodes before each call. It returns
// errors in final at once.
func (c *Controller) Retry(ctx context.Context, f func() error, final ...error) (err error) {
	const tries = 6
	for try := range tries {
		c.Observe(ctx)
		if err = f(); err == nil || ctx.Err() != nil || slices.ContainsFunc(final, func(e error) bool { return errors.Is(err, e) }) {
			return err
		}
		if !pause.For(ctx, c.cfg.Random.Jitter(c.cfg.WatchInterval<<min(try, 3)/4)) {
			return err
		}
	}
	return err
}

// Fence installs a new epoch and returns the nodes' marks.
func (c *Controller) Fence(ctx context.Context) (node.Marks, error) {
	_, marks, _, err := c.fence(ctx)
	return marks, err
}
