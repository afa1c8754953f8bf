package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/lockcore/internal/pause"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// Map is the last map that an admitted node of the set had, also one that this server does
// not know.
func (c *Controller) Map() node.Map {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen.last
}

// adoptMap adopts the map that was installed last on an admitted node; c.mu is held. Any
// is safe: a node with another map refuses.
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

// mapsDiffer reports whether the nodes have had different maps for so long that whoever
// changes them has stopped half way.
func (c *Controller) mapsDiffer(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.mixed.IsZero() && now.Sub(c.mixed) > c.cfg.inTouch()
}

// laterMap is the one of two nodes' maps that was installed last. A version without
// generations drops them when it admits a node again, with the map that the others have.
func laterMap(a, b node.Map) node.Map {
	if cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Generation, b.Generation)) < 0 {
		return b
	}
	return a
}

// newMap is that of a set which is bootstrapped in this epoch.
func (c *Controller) newMap(epoch node.Epoch) (m node.Map) {
	if c.cfg.NewMap != nil {
		m = c.cfg.NewMap()
	}
	if m.Name != "" {
		m.Epoch = epoch
	}
	return m
}

// sameMap completes a change that stopped half way.
func sameMap(marks node.Marks) (node.Map, error) { return marks.Map, nil }

// ChangeMap changes the map of the set. Change gets the marks of the nodes, with the map
// that is present, and returns the next one, whose epoch is set here; its error ends the change and is returned.
// The change is a compare-and-set over a quorum: an epoch is installed on at least R
// nodes, which no other change can use then, and the next map on a quorum of nodes that
// are still in that epoch. So it follows upon the present map, and no other change is
// between. After another error the change may have been made, or be made later.
func (c *Controller) ChangeMap(ctx context.Context, change func(node.Marks) (node.Map, error)) (node.Map, error) {
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
	for i := range c.nodes {
		signal(c.nudges[i])
	}
	next.Floor = max(next.Floor, marks.Map.Floor)
	return next, nil
}

// fence installs a new epoch on at least R nodes, and returns what they have.
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

// onQuorum does f on the nodes. The error is nil if a quorum did it.
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

// ErrOtherMap: the set has another map than was expected.
var ErrOtherMap = errors.New("the node set has another map")

// ReadLocks reads what must be known of a set whose resources move: every resource that is
// locked on a node, with the lease that it may have. The set must have the map of that
// name, under which no resource that moves is granted.
//
// In doubt the resource is locked for no lease: a lease that may live, though the nodes
// that could be read do not show it as a rejoin must see it, must not meet another one.
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

// block locks the resource for no lease if an owner has a lock on so many readers.
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

// Receive writes the locks of resources that move to this set, on a quorum.
func (c *Controller) Receive(ctx context.Context, name string, locks []node.CarriedLock) error {
	c.mu.Lock()
	p := c.plan(time.Now())
	c.mu.Unlock()
	pages := slices.Collect(slices.Chunk(locks, carryPage))
	var longest time.Duration
	for _, lock := range locks {
		longest = max(longest, lock.TTL)
	}
	return c.onQuorum(ctx, p.admitted, "took the locks", func(ctx context.Context, i int) error {
		if err := c.nodes[i].RaiseMaxTTL(ctx, longest); err != nil { // rule 13
			return err
		}
		for _, page := range pages {
			if err := c.nodes[i].Receive(ctx, p.epoch, name, page); err != nil {
				return err
			}
		}
		return nil
	})
}

// Retry calls f until it succeeds, a few times, and observes the nodes before each. Errors
// that final accepts are returned at once.
func (c *Controller) Retry(ctx context.Context, f func() error, final ...error) (err error) {
	const tries = 6
	for try := range tries {
		c.Observe(ctx)
		if err = f(); err == nil || ctx.Err() != nil || slices.ContainsFunc(final, func(e error) bool { return errors.Is(err, e) }) {
			return err
		}
		if pause.For(ctx, c.cfg.Random.Jitter(c.cfg.WatchInterval<<min(try, 3)/4)) != nil {
			return err
		}
	}
	return err
}

// Fence installs a new epoch and returns what the nodes have.
func (c *Controller) Fence(ctx context.Context) (node.Marks, error) {
	_, marks, _, err := c.fence(ctx)
	return marks, err
}
