package sets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
)

// Errors of ApplyNext and RevertNext. After ErrOtherChange, a *QuorumError or any other error the change may
// have been made in part: call again.
var (
	// ErrNoNext: Config.Next is empty.
	ErrNoNext = errors.New("no next node sets are configured")
	// ErrDecided: the next sets are decided already. The change can only be completed.
	ErrDecided = errors.New("the next node sets are decided: the change can only be completed")
	// ErrOtherChange: another operator's change came in between.
	ErrOtherChange = errors.New("another change of the node sets came first")
)

// ApplyNext makes the sets of Config.Next the present ones, or continues a change to them (rule 30). Leases of
// resources that move stay valid and keep their tokens. While the locks are copied, no server grants a
// resource that moves. Every set needs a quorum.
//
// From is the Generation from which the change is planned: ErrOtherChange if a set has a later map by then. If
// this change has already begun (Begun), from is ignored, and the change is continued from the point where its
// last run stopped.
func (l *Locker) ApplyNext(ctx context.Context, from int64) error {
	c, err := l.beginChange(ctx, from)
	if err != nil {
		return err
	}
	if err := c.takeAll(ctx); err != nil {
		return err
	}
	if c.decided {
		return c.settle(ctx, c.next.name)
	}
	if err := c.copyLocks(ctx); err != nil {
		return err
	}
	if err := c.shareSecrets(ctx); err != nil {
		return err
	}
	return c.settle(ctx, c.next.name)
}

// RevertNext takes back a change that is not decided. From is as for ApplyNext.
func (l *Locker) RevertNext(ctx context.Context, from int64) error {
	c, err := l.beginChange(ctx, from)
	if err != nil {
		return err
	}
	c.decided = l.inPhase(phaseNext) > 0 // checked before any node is changed, so that a refusal disturbs nothing
	if !c.decided {
		err = c.takeAll(ctx)
	}
	switch {
	case err != nil:
		return err
	case c.decided:
		return ErrDecided
	}
	return c.settle(ctx, c.present.name)
}

// change is one run of ApplyNext or RevertNext.
type change struct {
	*router
	cfg       Config
	ordered   []*set // in an order that is the same for all operators
	movingMap string // the name of the moving map of this run
	from      int64  // the generation from which it was planned; its own maps have the next one
	decided   bool   // a set has the next map
}

func (l *Locker) beginChange(ctx context.Context, from int64) (*change, error) {
	if l.cfg.Next == nil {
		return nil, ErrNoNext
	}
	l.Observe(ctx)
	for _, s := range l.router.sets {
		if !s.Members().Status().Ready {
			return nil, s.Unready(ctx, "ready")
		}
	}
	if err := l.CheckFrom(from); err != nil {
		return nil, err
	}
	if l.Begun() {
		from = l.Generation()
	}
	sets := l.inOrder()
	return &change{router: l.router, cfg: l.cfg, ordered: sets, from: from, movingMap: l.router.moving() + sets[0].random.Word()}, nil
}

// inOrder returns the sets in the order in which every operator takes them. A present set comes first. So if
// two changes start from one generation, the second meets the first at that set, before it has begun.
func (l *Locker) inOrder() []*set {
	return slices.SortedFunc(slices.Values(l.router.sets), func(a, b *set) int {
		switch present := l.router.present; {
		case present.has(a) && !present.has(b):
			return -1
		case present.has(b) && !present.has(a):
			return 1
		}
		return byHash(a, b)
	})
}

// Begun reports whether a set has a map of the change to Config.Next, as the sets were last
// observed: a run of ApplyNext or RevertNext is under way, has stopped, or has completed it.
func (l *Locker) Begun() bool { return l.inPhase(phaseMoving)+l.inPhase(phaseNext) > 0 }

// CheckFrom returns ErrOtherChange if a change that is planned from this Generation is not the next one, as
// the sets were last observed. It accepts any Generation for a change that has begun.
func (l *Locker) CheckFrom(from int64) error {
	if now := l.Generation(); now != from && !l.Begun() {
		return outrun(from, now)
	}
	return nil
}

func outrun(from, now int64) error {
	return fmt.Errorf("%w: this one is planned from generation %d of the maps, and they are at %d", ErrOtherChange, from, now)
}

// inPhase counts the sets that were in the phase when they were last observed.
func (l *Locker) inPhase(in phase) (n int) {
	for _, s := range l.router.sets {
		if l.router.phaseOf(s.Now().MapName()) == in {
			n++
		}
	}
	return n
}

// errKeeps means that the set keeps its present map.
var errKeeps = errors.New("the node set keeps its map")

// progress reports an action on a set. Sets are numbered as in Locker.Sets.
func (c *change) progress(does string, s *set) {
	c.cfg.Progress(fmt.Sprintf("%s set %d of %d", does, slices.Index(c.sets, s)+1, len(c.sets)))
}

// takeAll gives the moving map to all sets, except those that have the next map, which decides the change.
// After that, no earlier run can give a set its last map.
func (c *change) takeAll(ctx context.Context) error {
	for _, s := range c.ordered {
		c.progress("closing", s)
		err := c.install(ctx, s, func(m node.Map) (node.Map, error) {
			switch phase := c.phaseOf(m.Name); {
			case phase == phaseUnknown:
				return m, ErrOtherChange
			case phase == phaseNext:
				c.decided = true
				return m, errKeeps
			case m.Generation > c.from && m.Name != c.movingMap:
				return m, outrun(c.from, m.Generation)
			}
			return node.Map{Name: c.movingMap, Generation: c.from + 1}, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// settle gives all sets the last map with that name, in order, and only from the moving map of this run. The
// floor is the largest high-water mark of all sets.
func (c *change) settle(ctx context.Context, name string) error {
	floors := make([]fencing.Token, len(c.ordered))
	err := c.eachSet(func(i int, s *set) error {
		return s.Members().Retry(ctx, func() error {
			marks, err := s.Members().Fence(ctx)
			floors[i] = marks.HighWater
			return err
		})
	})
	if err != nil {
		return err
	}
	floor := slices.Max(floors)
	for _, s := range c.ordered {
		c.progress("opening", s)
		err := c.install(ctx, s, func(m node.Map) (node.Map, error) {
			switch {
			case m.Name == name && m.Floor >= floor:
				return m, errKeeps
			case m.Name != name && m.Name != c.movingMap:
				return m, ErrOtherChange
			}
			return node.Map{Name: name, Generation: max(m.Generation, c.from+1), Floor: floor}, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// install changes the map of a set to the result of next.
func (c *change) install(ctx context.Context, s *set, next func(node.Map) (node.Map, error)) error {
	err := s.Members().Retry(ctx, func() error {
		m, err := s.Members().ChangeMap(ctx, func(marks node.Marks) (node.Map, error) { return next(marks.Map) })
		if err == nil {
			c.taken(s, m)
		}
		return err
	}, errKeeps, ErrOtherChange)
	if errors.Is(err, errKeeps) {
		return nil
	}
	return s.Failed(err)
}

// copyLocks copies each lock that moves to a quorum of its new set.
func (c *change) copyLocks(ctx context.Context) error {
	c.cfg.Progress("reading the locks of all sets")
	read := make([][]node.CarriedLock, len(c.ordered))
	err := c.eachSet(func(i int, s *set) error {
		return s.Members().Retry(ctx, func() (err error) {
			read[i], err = s.Members().ReadLocks(ctx, c.movingMap)
			return err
		}, membership.ErrOtherMap)
	})
	if err != nil {
		return err
	}
	moves := c.moves(read)
	written := 0
	for _, locks := range moves {
		written += len(locks)
	}
	c.cfg.Progress(fmt.Sprintf("writing %d locks to their new sets", written))
	return c.eachSet(func(i int, s *set) error {
		if len(moves[i]) == 0 {
			return nil
		}
		return s.Members().Retry(ctx, func() error { return s.Members().Receive(ctx, c.movingMap, moves[i]) })
	})
}

// moves returns, for each set, the locks that it gets. With them are the locks to delete: those that a
// resource left on the set when it was there before.
func (c *change) moves(read [][]node.CarriedLock) [][]node.CarriedLock {
	moves := make([][]node.CarriedLock, len(c.ordered))
	arrives := make(map[string]bool)
	for i, s := range c.ordered {
		for _, lock := range read[i] {
			to := c.next.winner(lock.Resource)
			if c.present.winner(lock.Resource) == s && to != s && lock.Owner != "" {
				arrives[lock.Resource] = true
				at := slices.Index(c.ordered, to)
				moves[at] = append(moves[at], lock)
			}
		}
	}
	for i, s := range c.ordered {
		for _, lock := range read[i] {
			if c.present.winner(lock.Resource) != s && c.next.winner(lock.Resource) == s && !arrives[lock.Resource] {
				moves[i] = append(moves[i], node.CarriedLock{Resource: lock.Resource})
			}
		}
	}
	return moves
}

// shareSecrets copies the newest secret of each leaving set to a set that stays and has room for it. So lease
// ids sealed with it can still be opened when servers no longer know the leaving set.
func (c *change) shareSecrets(ctx context.Context) error {
	c.cfg.Progress("giving the secrets of sets that leave to those that stay")
	for _, s := range c.ordered {
		newest := s.Members().Secrets().List()
		if c.next.has(s) || len(newest) == 0 || c.cfg.Keys != nil {
			continue
		}
		given := slices.ContainsFunc(c.next.sets, func(to *set) bool { return to.Members().Secrets().Has(newest[0]) })
		for _, to := range c.next.sets {
			if given || len(to.Members().Secrets().List()) >= node.KeptSecrets {
				continue
			}
			secret := node.NewSecrets(newest[0].Epoch, newest[0].Raw)
			if err := to.Members().Retry(ctx, func() error { return to.Members().AddSecrets(ctx, secret) }); err != nil {
				return to.Failed(err)
			}
			to.Members().Observe(ctx)
			given = true
		}
		if !given {
			c.cfg.Logger.Warn("no set has room for the secret of a removed set: its lease ids are refused when the servers no longer know that secret", "set", s.Nodes()[0].Name())
		}
	}
	return nil
}

// eachSet calls f concurrently for all sets.
func (c *change) eachSet(f func(i int, s *set) error) error {
	errs := make([]error, len(c.ordered))
	var wg sync.WaitGroup
	for i, s := range c.ordered {
		wg.Go(func() { errs[i] = s.Failed(f(i, s)) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
