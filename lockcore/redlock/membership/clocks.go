package membership

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// The readings of a node's clock are compared by their bounds, so a slow response is not evidence of a jump.
const (
	clockStep    = 100 * time.Millisecond // the smallest jump; a clock that is slewed never gets near it
	clockSkew    = 500                    // and a 500th of the time between two readings: an ordinary clock drifts by a 2000th
	clockTrip    = 100 * time.Millisecond // a reading that took longer is not used
	clockGap     = 30 * time.Second       // after this long without a reading, the history begins again
	clockConfirm = 3                      // readings in a row that must agree on a jump
	clockWindow  = 16                     // readings that are kept
	clockMedian  = 9                      // number of readings whose median is the offset
)

// reading is one reading of a node's clock: the bounds of how far it was ahead of this server's steady
// clock, which is never set.
type reading struct {
	at       time.Time // when the reading was requested
	min, max time.Duration
	ahead    time.Duration // how far the clock was ahead of this server's wall clock, half-way through the reading
}

// readClock reads a node's clock. Steady time is counted from base on the monotonic clock.
func readClock(ctx context.Context, n node.Clocked, base time.Time) (reading, bool) {
	asked := time.Now()
	shown, err := n.Time(ctx)
	answered := time.Now()
	trip := answered.Sub(asked)
	if err != nil || trip > clockTrip {
		return reading{}, false
	}
	steady := func(t time.Time) time.Time { return base.Round(0).Add(t.Sub(base)) }
	return reading{
		at: asked, min: shown.Sub(steady(answered)), max: shown.Sub(steady(asked)),
		ahead: shown.Sub(asked.Round(0).Add(trip / 2)),
	}, true
}

// differs returns by how much two readings contradict each other, beyond the drift that two clocks may have:
// positive when r is ahead of the earlier one.
func (r reading) differs(earlier reading) time.Duration {
	allowed := clockStep + r.at.Sub(earlier.at)/clockSkew
	switch {
	case r.min-earlier.max > allowed:
		return r.min - earlier.max
	case earlier.min-r.max > allowed:
		return r.max - earlier.min
	}
	return 0
}

// clockWatch is a server's record of one node's clock.
type clockWatch struct {
	recent        []reading // readings that agree with each other, oldest first
	contradicting []reading // readings that contradict them, since the last one that did not
	began         time.Time // when this history began; the clock has not jumped since
	steady        time.Time // the last reading that agreed with the history
	jump          time.Duration
	since         time.Time // when the first reading after the jump was made
}

// take adds a reading. It reports a jump when the jump has just become certain.
func (c *clockWatch) take(r reading) (jumped bool) {
	if len(c.recent) == 0 || r.at.Sub(c.last()) > clockGap {
		*c = clockWatch{recent: []reading{r}, began: r.at, steady: r.at}
		return false
	}
	by := r.differs(c.sharpest())
	if by == 0 {
		c.recent = append(c.recent, r)
		if len(c.recent) > clockWindow {
			c.recent = c.recent[1:]
		}
		c.contradicting, c.jump, c.steady = nil, 0, r.at
		return false
	}
	if len(c.contradicting) > 0 && r.differs(c.contradicting[0]) != 0 {
		c.contradicting = nil // it jumped again, or is being set step by step
	}
	c.contradicting = append(c.contradicting, r)
	if c.jump != 0 || len(c.contradicting) < clockConfirm {
		return false
	}
	c.jump, c.since = by, c.contradicting[0].at
	return true
}

func (c *clockWatch) last() time.Time {
	if n := len(c.contradicting); n > 0 {
		return c.contradicting[n-1].at
	}
	return c.recent[len(c.recent)-1].at
}

// sharpest returns the reading with the closest bounds.
func (c *clockWatch) sharpest() reading {
	return slices.MinFunc(c.recent, func(a, b reading) int { return int((a.max - a.min) - (b.max - b.min)) })
}

// ahead returns the median of the last readings.
func (c *clockWatch) ahead() time.Duration {
	readings := slices.Concat(c.recent, c.contradicting)
	var ahead []time.Duration
	for _, r := range readings[max(0, len(readings)-clockMedian):] {
		ahead = append(ahead, r.ahead)
	}
	slices.Sort(ahead)
	return ahead[len(ahead)/2]
}

// settle begins a new history with the readings after the jump.
func (c *clockWatch) settle() {
	*c = clockWatch{recent: c.contradicting, began: c.since, steady: c.last()}
}

// clockVerdict says which clocks jumped.
type clockVerdict struct {
	expel []int // nodes whose clocks jumped
	ours  []int // nodes that jumped alike: enough to show that this server's clock jumped
}

// ownJump is the last jump of this server's own clock; zero if there was none. The nodes are read one after
// the other, so some readings show the jump only after it was judged.
type ownJump struct {
	by time.Duration
	at time.Time
}

func (o ownJump) explains(c *clockWatch) bool {
	return alike(o.by, c.jump) && c.since.Sub(o.at).Abs() < clockGap/3
}

// alike reports whether two nodes show the same jump of this server's clock. They may differ by the drift of
// each in the meantime.
func alike(a, b time.Duration) bool { return a != 0 && b != 0 && (a-b).Abs() <= 2*clockStep }

// judgeClocks decides whose clock jumped. All clocks are compared with this server's, so a jump of this
// server's clock shows as a jump of all nodes. A node is expelled only while R other nodes are seen without a
// jump. If a quorum of nodes jumped alike, the server's clock jumped. Until one of the two is known, nothing
// is done.
func judgeClocks(clocks []clockWatch, own ownJump) (v clockVerdict) {
	n := len(clocks)
	for i := range clocks {
		if clocks[i].jump == 0 {
			continue
		}
		like, steady := 0, 0
		for j := range clocks {
			switch other := &clocks[j]; {
			case alike(other.jump, clocks[i].jump):
				like++
			case other.jump != 0:
			case other.began.Before(clocks[i].since) && other.steady.After(clocks[i].since):
				steady++
			}
		}
		switch {
		case like >= quorum.Of(n), own.explains(&clocks[i]):
			v.ours = append(v.ours, i)
		case steady >= quorum.Readers(n):
			v.expel = append(v.expel, i)
		}
	}
	return v
}

// readClock reads node i's clock.
func (c *Controller) readClock(ctx context.Context, i int) {
	clocked, ok := c.nodes[i].(node.Clocked)
	if !ok {
		return
	}
	r, ok := readClock(ctx, clocked, c.base)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clock := &c.clocks[i]
	jumped := clock.take(r)
	c.cfg.Meters[i].Clock(clock.ahead())
	if jumped {
		c.cfg.Meters[i].Jump(clock.jump)
		c.cfg.Logger.Warn("the clock of a node jumped against this server's", "node", c.nodes[i].Name(), "by", clock.jump)
	}
}

// judgeJumps settles the clocks that need no quarantine, and returns the nodes to expel.
func (c *Controller) judgeJumps() (expel []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.clocks {
		if clock := &c.clocks[i]; clock.jump != 0 && c.seen.nodes[i].quarantined() {
			clock.settle() // another server was faster
		}
	}
	v := judgeClocks(c.clocks, c.own)
	before := c.own
	for _, i := range v.ours {
		clock := &c.clocks[i]
		if !before.explains(clock) && c.own == before {
			c.cfg.Logger.Warn("this server's own clock jumped, because many nodes' clocks seemed to jump by the same time: the machine was suspended, or the process stopped; no node is quarantined", "by", -clock.jump)
		}
		c.own = ownJump{by: clock.jump, at: clock.since}
		clock.settle()
	}
	return slices.DeleteFunc(v.expel, func(i int) bool { return !c.dispensable(i, v.expel) })
}

// dispensable reports that the node votes, and that the others, without those to expel, are a quorum.
func (c *Controller) dispensable(i int, expel []int) bool {
	others := 0
	for j := range c.seen.nodes {
		if c.seen.nodes[j].state == lockcore.NodeVoting && !slices.Contains(expel, j) {
			others++
		}
	}
	return c.seen.nodes[i].admitted() && others >= quorum.Of(len(c.nodes))
}

// expel quarantines a node whose clock jumped (rule 22). The node is admitted again like a node that
// restarted.
func (c *Controller) expel(ctx context.Context, i int) {
	clocked, ok := c.nodes[i].(node.Clocked)
	if !ok {
		return
	}
	c.mu.Lock()
	seen, by := c.seen.nodes[i].seen, c.clocks[i].jump
	c.mu.Unlock()
	err := c.call(ctx, "expelling", func(ctx context.Context) error {
		return clocked.Expel(ctx, seen.Incarnation, seen.Epoch, c.cfg.Random.Word())
	})
	if err == nil {
		c.mu.Lock()
		c.clocks[i].settle()
		c.mu.Unlock()
		c.audit(ctx, actQuarantine, i, slog.String("why", "its clock jumped"), slog.Duration("by", by))
		c.cfg.Logger.Warn("a node is quarantined because its clock jumped: its locks may have ended early; see that its time is only ever slewed (chrony without makestep, ntpd -x)",
			"node", c.nodes[i].Name(), "by", by)
	}
	signal(c.nudges[i])
}
