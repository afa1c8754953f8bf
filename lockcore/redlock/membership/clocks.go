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

// What is a jump, and what is a clock's ordinary way. The readings of a node
// are compared by their bounds, so a slow answer proves nothing either way.
const (
	clockStep    = 100 * time.Millisecond // the smallest jump; a clock that is only steered never gets near it
	clockSkew    = 500                    // and a five-hundredth of the time between two readings: an ordinary clock strays by a 2000th
	clockTrip    = 100 * time.Millisecond // a reading that took longer says too little
	clockGap     = 30 * time.Second       // without a reading for so long, the history begins again
	clockConfirm = 3                      // readings in a row that must agree on a jump
	clockWindow  = 16                     // readings that are kept
	clockMedian  = 9                      // readings that the offset is the median of
)

// reading is one look at a node's clock: by how much it was ahead of this
// server's steady clock, which is never set, between least and most.
type reading struct {
	at       time.Time // when it was asked
	min, max time.Duration
	ahead    time.Duration // of this server's wall clock, halfway
}

// readClock asks a node for its time. Steady time counts from base on the
// monotonic clock.
func readClock(ctx context.Context, n node.Clocked, base time.Time) (reading, bool) {
	asked := time.Now()
	told, err := n.Time(ctx)
	answered := time.Now()
	trip := answered.Sub(asked)
	if err != nil || trip > clockTrip {
		return reading{}, false
	}
	steady := func(t time.Time) time.Time { return base.Round(0).Add(t.Sub(base)) }
	return reading{
		at: asked, min: told.Sub(steady(answered)), max: told.Sub(steady(asked)),
		ahead: told.Sub(asked.Round(0).Add(trip / 2)),
	}, true
}

// differs is by how much the two readings contradict each other, beyond what
// two clocks may stray: positive when r is ahead of the earlier one.
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

// clockWatch is what one server knows of one node's clock.
type clockWatch struct {
	recent        []reading // that agree with each other, oldest first
	contradicting []reading // that contradict them, since the last that did not
	began         time.Time // of this history: it has not jumped since, up to steady
	steady        time.Time // of the last reading that agreed
	jump          time.Duration
	since         time.Time // of the first reading after the jump
}

// take takes a reading, and reports a jump when it has just become certain.
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
		c.contradicting = nil // it has jumped again, or is being turned
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

// sharpest is the reading whose bounds are closest.
func (c *clockWatch) sharpest() reading {
	return slices.MinFunc(c.recent, func(a, b reading) int { return int((a.max - a.min) - (b.max - b.min)) })
}

// ahead is the median of the last readings.
func (c *clockWatch) ahead() time.Duration {
	readings := slices.Concat(c.recent, c.contradicting)
	var ahead []time.Duration
	for _, r := range readings[max(0, len(readings)-clockMedian):] {
		ahead = append(ahead, r.ahead)
	}
	slices.Sort(ahead)
	return ahead[len(ahead)/2]
}

// settle makes what the clock says now the rule.
func (c *clockWatch) settle() {
	*c = clockWatch{recent: c.contradicting, began: c.since, steady: c.last()}
}

// clockVerdict says what should be done about clocks that jumped.
type clockVerdict struct {
	expel []int // their own clocks jumped
	ours  []int // so many jumped alike that it was this server's own
}

// ownJump is the last jump of this server's own clock, zero for none. The nodes
// are read one after the other, so some show it only when it has been judged.
type ownJump struct {
	by time.Duration
	at time.Time
}

func (o ownJump) explains(c *clockWatch) bool {
	return alike(o.by, c.jump) && c.since.Sub(o.at).Abs() < clockGap/3
}

// alike: two nodes that show the same jump of this server's clock differ by
// what either may have strayed meanwhile.
func alike(a, b time.Duration) bool { return a != 0 && b != 0 && (a-b).Abs() <= 2*clockStep }

// judgeClocks tells whose clock it was that jumped. All are compared with this
// server's, so a jump of that one shows as a jump of all nodes: a node is
// suspected only while R nodes are seen to have gone on as before, and the
// server when a quorum of nodes jumped alike. Until either is known, nothing is done.
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

// readClock takes a reading of node i's clock.
func (m *Controller) readClock(ctx context.Context, i int) {
	clocked, ok := m.nodes[i].(node.Clocked)
	if !ok {
		return
	}
	r, ok := readClock(ctx, clocked, m.base)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.clocks[i]
	jumped := c.take(r)
	m.cfg.Meter(i).Clock(c.ahead())
	if jumped {
		m.cfg.Meter(i).Jump(c.jump)
		m.cfg.Logger.Warn("the clock of a node jumped against this server's", "node", m.nodes[i].Name(), "by", c.jump)
	}
}

// minded takes the nodes whose clocks need nothing to be done off the verdict,
// and returns those to expel.
func (m *Controller) minded() (expel []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.clocks {
		if c := &m.clocks[i]; c.jump != 0 && m.seen.nodes[i].quarantined() {
			c.settle() // its silence has begun already: somebody else was faster
		}
	}
	v := judgeClocks(m.clocks, m.own)
	before := m.own
	for _, i := range v.ours {
		if !before.explains(&m.clocks[i]) && m.own == before {
			m.cfg.Logger.Warn("the clocks of so many nodes jumped alike that it was this server's own, which was asleep or stopped: no node is quarantined for it", "by", -m.clocks[i].jump)
		}
		m.own = ownJump{by: m.clocks[i].jump, at: m.clocks[i].since}
		m.clocks[i].settle()
	}
	return slices.DeleteFunc(v.expel, func(i int) bool { return !m.dispensable(i, v.expel) })
}

// dispensable: the node votes, and a quorum does without it and the others
// that are to go.
func (m *Controller) dispensable(i int, expel []int) bool {
	others := 0
	for j := range m.seen.nodes {
		if m.seen.nodes[j].state == lockcore.NodeVoting && !slices.Contains(expel, j) {
			others++
		}
	}
	return m.seen.nodes[i].admitted() && others >= quorum.Of(len(m.nodes))
}

// expel begins the silence of a node whose clock jumped (rule 22). It is admitted
// again like a node that restarted.
func (m *Controller) expel(ctx context.Context, i int) {
	clocked, ok := m.nodes[i].(node.Clocked)
	if !ok {
		return
	}
	m.mu.Lock()
	seen, by := m.seen.nodes[i].seen, m.clocks[i].jump
	m.mu.Unlock()
	err := m.call(ctx, func(ctx context.Context) error {
		return clocked.Expel(ctx, seen.Incarnation, seen.Epoch, m.cfg.Random.Word())
	})
	if err == nil {
		m.mu.Lock()
		m.clocks[i].settle()
		m.mu.Unlock()
		m.audit(ctx, actQuarantine, i, slog.String("why", "its clock jumped"), slog.Duration("by", by))
		m.cfg.Logger.Warn("a node is quarantined because its clock jumped: its locks may have ended early; see that its time is only ever slewed (chrony without makestep, ntpd -x)",
			"node", m.nodes[i].Name(), "by", by)
	}
	m.nudge(i)
}
