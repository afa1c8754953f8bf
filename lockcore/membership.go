package lockcore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// membership watches the nodes and decides which may vote: it keeps one
// goroutine a node that looks, and one that acts on what was seen. Several
// servers do the same on the same nodes; every step is made safe on the node
// itself (rules 8 to 11), so they need not agree.
type membership struct {
	cfg     Config
	nodes   []Node
	cluster Cluster
	meters  []Meter
	base    time.Time // steady time counts from here, see readClock
	view    *knownView
	nudges  []chan struct{} // per node: look now
	acts    chan struct{}   // something was seen

	mu       sync.Mutex
	sights   []sight
	clocks   []clockWatch
	own      ownJump
	backoff  time.Time // no admission before this
	failures int
	longest  time.Duration // the longest TTL that any node ever recorded
	doubt    doubt
}

const notSeenYet = "not seen yet"

func newMembership(cfg Config, nodes []Node, view *knownView) *membership {
	m := &membership{
		cfg: cfg, nodes: nodes, cluster: clusterOf(nodes), view: view,
		meters: cfg.metersOf(nodes), base: time.Now(),
		acts:   make(chan struct{}, 1),
		clocks: make([]clockWatch, len(nodes)),
		sights: make([]sight, len(nodes)),
	}
	now := time.Now()
	for i := range nodes {
		m.nudges = append(m.nudges, make(chan struct{}, 1))
		m.sights[i] = sight{state: NodeUnreachable, reason: notSeenYet, since: now}
	}
	return m
}

// run watches until ctx ends, and returns when every goroutine has.
func (m *membership) run(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range m.nodes {
		wg.Go(func() { m.watch(ctx, i) })
	}
	wg.Go(func() { m.act(ctx) })
	wg.Wait()
}

// refused asks for a look at node i, whose gate was shut, unless that is no news:
// then requests would make it be looked at ten times as often for nothing.
func (m *membership) refused(i int) {
	m.mu.Lock()
	news := m.sights[i].state == NodeVoting
	m.mu.Unlock()
	if news {
		m.nudge(i)
	}
}

// nudge asks for a look at node i now.
func (m *membership) nudge(i int) {
	select {
	case m.nudges[i] <- struct{}{}:
	default:
	}
}

// watch looks at node i at every interval and nudge.
func (m *membership) watch(ctx context.Context, i int) {
	for {
		m.look(ctx, i)
		select {
		case m.acts <- struct{}{}:
		default:
		}
		if !m.pause(ctx, i) {
			return
		}
	}
}

// pause waits for the next look. Nudges come as fast as requests fail, so a
// fraction of the interval is kept in any case.
func (m *membership) pause(ctx context.Context, i int) bool {
	const nudged = 10
	if sleep(ctx, m.cfg.WatchInterval/nudged) != nil {
		return false
	}
	timer := time.NewTimer(m.cfg.WatchInterval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-m.nudges[i]:
	}
	return true
}

// observeTimeout is how long a look may take: it need not be as short as a
// vote's limit, since nobody waits for it.
func (c Config) observeTimeout() time.Duration { return max(4*c.NodeTimeout, c.WatchInterval) }

func (m *membership) look(ctx context.Context, i int) {
	looking, cancel := context.WithTimeout(ctx, m.cfg.observeTimeout())
	defer cancel()
	seen, err := m.observe(looking, i)
	if ctx.Err() != nil {
		return
	}
	if err == nil && seen.Admitted {
		m.learnOf(seen)
	}
	if err == nil {
		m.readClock(looking, i)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.sights[i]
	m.sights[i].update(seen, err, m.ours(seen))
	m.markOut(time.Now())
	m.judge()
	m.report(ctx, i, before)
}

// observe looks at node i, and notes on one that is not admitted that its
// silence begins.
func (m *membership) observe(ctx context.Context, i int) (Observation, error) {
	seen, err := m.nodes[i].Observe(ctx)
	if err != nil || seen.Admitted || seen.Note != "" || seen.Unfit != "" || !m.ours(seen) {
		return seen, err
	}
	if err := m.nodes[i].Quarantine(ctx, m.cfg.newLeaseValue()); err != nil {
		return seen, nil //nolint:nilerr // it was seen; its wait begins with the note
	}
	m.audit(ctx, actQuarantine, i, slog.String("why", "it is not admitted: it restarted, or is new"))
	return m.nodes[i].Observe(ctx)
}

// ours: the node bears this cluster's mark, or none.
func (m *membership) ours(seen Observation) bool {
	return seen.Cluster == Cluster{} || seen.Cluster == m.cluster
}

func (m *membership) learnOf(seen Observation) {
	if seen.Cluster == m.cluster {
		m.view.learn(seen.View)
	}
}

// report logs a change of a node's state; of its reason alone only now and
// then, since a node that is away fails in many words.
func (m *membership) report(ctx context.Context, i int, before sight) {
	const often = time.Minute
	after := &m.sights[i]
	if after.state == before.state && (after.reason == before.reason || time.Since(after.reported) < often) {
		return
	}
	after.reported = time.Now()
	level := slog.LevelInfo
	if after.state != NodeVoting {
		level = slog.LevelWarn
	}
	m.cfg.Logger.Log(ctx, level, "node state",
		"node", m.nodes[i].Name(), "state", string(after.state), "was", string(before.state), "reason", after.reason)
}

// judge gives every node its state, from all the sights together.
func (m *membership) judge() {
	now := time.Now()
	p := m.plan(now)
	for i := range m.sights {
		s := &m.sights[i]
		state, reason := s.judge(p.reasons[i])
		if state != s.state {
			s.since = now
		}
		s.state, s.reason = state, reason
	}
}

// sight is what one server knows of one node.
type sight struct {
	seen    Observation
	err     error // of the last look; seen is then older
	looked  bool  // was seen at least once
	cluster bool  // its record, if any, is this cluster's

	away bool // admitted, but in a view from before the last founding

	// outSince is when the node was first seen in this state without admission,
	// on this server's monotonic clock (rule 13); zero while it is admitted.
	outSince time.Time
	outPin   pin

	state    NodeState
	reason   string
	since    time.Time
	reported time.Time // when the state or the reason was last logged
}

func (s *sight) update(seen Observation, err error, ours bool) {
	s.err = err
	if err != nil {
		return
	}
	s.seen, s.looked, s.cluster = seen, true, ours
}

// markOut notes since when each node is without a valid admission. A node
// admitted in a view from before the last founding has none: it was away
// during it and rejoins like one that restarted (rule 12).
func (m *membership) markOut(now time.Time) {
	founded := m.founded()
	for i := range m.sights {
		s := &m.sights[i]
		if s.err != nil {
			continue
		}
		if s.fit() {
			m.longest = max(m.longest, min(s.seen.Marks.MaxTTL, mostRecordedTTL))
		}
		s.away = s.seen.Admitted && s.seen.View < founded
		switch {
		case s.seen.Admitted && !s.away:
			s.outSince, s.outPin = time.Time{}, pin{}
		case s.outPin != s.seen.pin(), !s.away && s.seen.Note == "": // without the note no wait begins
			s.outSince, s.outPin = now, s.seen.pin()
		}
	}
}

// founded is the view of the last founding that anybody knows of, as each node
// was last seen: one that does not answer for a moment is no reason to take
// another one, which was away during the founding, for a voting node again.
func (m *membership) founded() (view View) {
	for i := range m.sights {
		if s := &m.sights[i]; s.looked && s.seen.Unfit == "" && s.cluster && s.seen.Admitted {
			view = max(view, s.seen.Marks.Founded)
		}
	}
	return view
}

// fit: answers, is configured as it must be, and is this cluster's or nobody's.
func (s *sight) fit() bool { return s.err == nil && s.looked && s.seen.Unfit == "" && s.cluster }

func (s *sight) admitted() bool { return s.fit() && s.seen.Admitted && !s.away }

func (s *sight) out() bool { return s.fit() && (!s.seen.Admitted || s.away) }

// waitLeft is what is left of a node's delayed restart (rule 13).
func (s *sight) waitLeft(wait time.Duration, now time.Time) time.Duration {
	return max(0, wait-now.Sub(s.outSince))
}

func (s *sight) judge(outReason string) (NodeState, string) {
	switch {
	case s.err != nil:
		return NodeUnreachable, s.err.Error()
	case !s.looked:
		return NodeUnreachable, notSeenYet
	case s.seen.Unfit != "":
		return NodeRefused, s.seen.Unfit
	case !s.cluster:
		return NodeRefused, fmt.Sprintf("it belongs to a cluster of %d other nodes (mark %s): configure every server with the same node list, or use an empty database", s.seen.Cluster.Nodes, s.seen.Cluster.Hash)
	case outReason != "":
		return NodeQuarantined, outReason
	}
	return NodeVoting, ""
}

// status describes the cluster.
func (m *membership) status() ClusterStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	p := m.plan(now)
	s := ClusterStatus{Quorum: QuorumOf(len(m.nodes)), Nodes: make([]NodeStatus, len(m.nodes))}
	for i := range m.sights {
		at := &m.sights[i]
		n := NodeStatus{
			Name: m.nodes[i].Name(), State: at.state, Reason: at.reason,
			Since: now.Sub(at.since), View: at.seen.View,
		}
		switch at.state {
		case NodeVoting:
			s.Voting++
		case NodeQuarantined:
			n.Wait = at.waitLeft(p.wait, now)
		}
		s.Nodes[i] = n
	}
	s.Ready = s.Voting >= s.Quorum
	if !s.Ready {
		s.Reason = p.why
	}
	return s
}

// act carries plans out, one at a time.
func (m *membership) act(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.acts:
		}
		m.step(ctx)
	}
}

// step does what the plan of this moment asks for.
func (m *membership) step(ctx context.Context) {
	m.mu.Lock()
	now := time.Now()
	p := m.plan(now)
	m.settleView(p, now)
	wait := now.Before(m.backoff)
	m.mu.Unlock()
	for _, i := range m.minded() {
		m.expel(ctx, i)
	}
	for _, i := range p.raise {
		m.raise(ctx, i, p.view)
	}
	for _, i := range p.raiseTTL {
		m.raiseTTL(ctx, i)
	}
	switch {
	case wait:
	case len(p.found) > 0:
		m.finish(ctx, "re-founding", m.found(ctx, p))
	case len(p.rejoin) > 0:
		m.finish(ctx, "rejoin", m.rejoin(ctx, p))
	}
}

// finish looks again at every node at once, or draws a pause after a failure:
// another server may be admitting the same node.
func (m *membership) finish(ctx context.Context, what string, err error) {
	m.mu.Lock()
	if err == nil {
		m.failures = 0
	} else {
		m.failures = min(m.failures+1, 5)
		m.backoff = time.Now().Add(m.cfg.jitter(m.cfg.WatchInterval << m.failures / 4))
	}
	m.mu.Unlock()
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrRaced) {
		m.cfg.Logger.Warn("nodes were not admitted, will be tried again", "by", what, "error", err)
	}
	for i := range m.nodes {
		m.look(ctx, i)
	}
}

// raise brings an admitted node that missed a change of view up to it. It is
// a fenced read (rule 8) whose result nobody needs.
func (m *membership) raise(ctx context.Context, i int, view View) {
	calling, cancel := context.WithTimeout(ctx, m.cfg.observeTimeout())
	defer cancel()
	if _, err := m.nodes[i].Fence(calling, view); err == nil {
		m.nudge(i)
	}
}

func (m *membership) raiseTTL(ctx context.Context, i int) {
	calling, cancel := context.WithTimeout(ctx, m.cfg.observeTimeout())
	defer cancel()
	if err := m.nodes[i].RaiseMaxTTL(calling, m.cfg.MaxTTL); err != nil && ctx.Err() == nil {
		m.cfg.Logger.Warn("a node did not take the longest TTL of this server", "node", m.nodes[i].Name(), "error", err)
	}
}

// mostView leaves room above every view, so that a broken node that names a
// huge one cannot use them up.
const mostView = View(fencing.MaxToken) - 1<<40

// viewBits is how many low bits of a founding's view are random.
const viewBits = 10

// foundingView makes a view for a founding: from the wall clock, so that it is
// larger than any that a lost majority knew, with random low bits, so that no
// other admitter makes the same (rule 12). It is above what this server knows,
// too, in case that the clock has been set back.
func (m *membership) foundingView(largest View) View {
	clock := View(time.Now().UnixMilli())<<viewBits | View(m.cfg.randomBelow(1<<viewBits))
	return max(clock, m.rejoinView(max(largest, m.view.view())))
}

// rejoinView makes a view for a rejoin: just above the largest seen (rule 9).
// It does not follow the clock, so that a rejoin among nodes that missed a
// founding stays below the founding's view.
func (m *membership) rejoinView(largest View) View {
	const steps = 16
	return largest + 1 + View(m.cfg.randomBelow(steps))
}
