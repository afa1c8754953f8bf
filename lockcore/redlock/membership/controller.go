package membership

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/internal/pause"
)

// membership watches the nodes and decides which may vote: it keeps one
// goroutine a node that looks, and one that acts on what was seen. Several
// servers do the same on the same nodes; every step is made safe on the node
// itself (rules 8 to 11), so they need not agree.
type Controller struct {
	cfg     Config
	nodes   []node.Node
	cluster node.Cluster
	base    time.Time // steady time counts from here, see readClock
	epoch   knownEpoch
	nudges  []chan struct{} // per node: look now
	refresh refresh
	acts    chan struct{} // something was seen

	mu          sync.Mutex
	seen        observations
	clocks      []clockWatch
	own         ownJump
	backoff     time.Time // no admission before this
	failures    int
	unconfirmed unknownEpoch
	secrets     knownSecrets
}

func New(cfg Config, nodes []node.Node) *Controller {
	m := &Controller{
		cfg: cfg, nodes: nodes, cluster: ClusterOf(nodes), base: time.Now(),
		acts:   make(chan struct{}, 1),
		clocks: make([]clockWatch, len(nodes)),
		seen:   newObservations(nodes, time.Now()),
	}
	for _, n := range nodes {
		n.Join(m.cluster)
		m.nudges = append(m.nudges, make(chan struct{}, 1))
	}
	return m
}

// Cluster names the node set.
func (m *Controller) Cluster() node.Cluster { return m.cluster }

// run watches until ctx ends, and returns when every goroutine has.
func (m *Controller) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range m.nodes {
		wg.Go(func() { m.watch(ctx, i) })
	}
	wg.Go(func() { m.act(ctx) })
	wg.Wait()
}

// refused asks for a look at node i, whose gate was shut, unless that is no news:
// then requests would make it be looked at ten times as often for nothing.
func (m *Controller) Refused(i int) {
	m.mu.Lock()
	news := m.seen.nodes[i].state == lockcore.NodeVoting
	m.mu.Unlock()
	if news {
		m.nudge(i)
	}
}

// nudge asks for a look at node i now.
func (m *Controller) nudge(i int) {
	select {
	case m.nudges[i] <- struct{}{}:
	default:
	}
}

// watch looks at node i at every interval and nudge.
func (m *Controller) watch(ctx context.Context, i int) {
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
func (m *Controller) pause(ctx context.Context, i int) bool {
	const nudged = 10
	if pause.For(ctx, m.cfg.WatchInterval/nudged) != nil {
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

func (m *Controller) look(ctx context.Context, i int) {
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
	before := m.seen.nodes[i]
	m.seen.see(i, seen, err, time.Now())
	m.adoptSecrets(time.Now())
	m.judge()
	m.report(ctx, i, before)
}

// observe looks at node i, and notes on one that is not admitted that its
// silence begins.
func (m *Controller) observe(ctx context.Context, i int) (node.Observation, error) {
	seen, err := m.nodes[i].Observe(ctx)
	if err != nil || seen.Admitted || seen.Note != "" || seen.Unfit != "" || !m.seen.ours(seen) {
		return seen, err
	}
	if err := m.nodes[i].Quarantine(ctx, m.cfg.Random.Word()); err != nil {
		return seen, nil //nolint:nilerr // it was seen; its wait begins with the note
	}
	m.audit(ctx, actQuarantine, i, slog.String("why", "it is not admitted: it restarted, or is new"))
	return m.nodes[i].Observe(ctx)
}

func (m *Controller) learnOf(seen node.Observation) {
	if seen.Cluster == m.cluster {
		m.epoch.learn(seen.Epoch)
	}
}

// report logs a change of a node's state; of its reason alone only now and
// then, since a node that is away fails in many words.
func (m *Controller) report(ctx context.Context, i int, before observed) {
	const often = time.Minute
	after := &m.seen.nodes[i]
	if after.state == before.state && (after.reason == before.reason || time.Since(after.reported) < often) {
		return
	}
	after.reported = time.Now()
	level := slog.LevelInfo
	if after.state != lockcore.NodeVoting {
		level = slog.LevelWarn
	}
	m.cfg.Logger.Log(ctx, level, "node state",
		"node", m.nodes[i].Name(), "state", string(after.state), "was", string(before.state), "reason", after.reason)
}

// judge gives every node its state, from all that was seen.
func (m *Controller) judge() {
	now := time.Now()
	m.seen.judge(planFor(&m.seen, m.cfg, now), now)
}

// status describes the cluster.
func (m *Controller) Status() lockcore.ClusterStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	return m.seen.status(planFor(&m.seen, m.cfg, now), now)
}

// act carries plans out, one at a time.
func (m *Controller) act(ctx context.Context) {
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
func (m *Controller) step(ctx context.Context) {
	m.mu.Lock()
	now := time.Now()
	p := planFor(&m.seen, m.cfg, now)
	m.settleEpoch(p, now)
	wait := now.Before(m.backoff)
	m.mu.Unlock()
	for _, i := range m.minded() {
		m.expel(ctx, i)
	}
	for _, i := range p.raise {
		m.raise(ctx, i, p.epoch)
	}
	for _, i := range p.raiseTTL {
		m.raiseTTL(ctx, i)
	}
	for _, i := range p.raiseSecrets {
		m.raiseSecrets(ctx, i, p.secrets)
	}
	switch {
	case wait:
	case len(p.bootstrap) > 0:
		m.finish(ctx, "re-bootstrap", m.bootstrap(ctx, p))
	case len(p.rejoin) > 0:
		m.finish(ctx, "rejoin", m.rejoin(ctx, p))
	}
}

// finish looks again at every node at once, or draws a pause after a failure:
// another server may be admitting the same node.
func (m *Controller) finish(ctx context.Context, what string, err error) {
	m.mu.Lock()
	if err == nil {
		m.failures = 0
	} else {
		m.failures = min(m.failures+1, 5)
		m.backoff = time.Now().Add(m.cfg.Random.Jitter(m.cfg.WatchInterval << m.failures / 4))
	}
	m.mu.Unlock()
	if err != nil && ctx.Err() == nil && !errors.Is(err, node.ErrRaced) {
		m.cfg.Logger.Warn("nodes were not admitted, will be tried again", "by", what, "error", err)
	}
	for i := range m.nodes {
		m.look(ctx, i)
	}
}

// raise brings an admitted node that missed a change of epoch up to it. It is
// a fenced read (rule 8) whose result nobody needs.
func (m *Controller) raise(ctx context.Context, i int, epoch node.Epoch) {
	calling, cancel := context.WithTimeout(ctx, m.cfg.observeTimeout())
	defer cancel()
	if _, err := m.nodes[i].InstallEpoch(calling, epoch); err == nil {
		m.nudge(i)
	}
}

func (m *Controller) raiseTTL(ctx context.Context, i int) {
	calling, cancel := context.WithTimeout(ctx, m.cfg.observeTimeout())
	defer cancel()
	if err := m.nodes[i].RaiseMaxTTL(calling, m.cfg.MaxTTL); err != nil && ctx.Err() == nil {
		m.cfg.Logger.Warn("a node did not take the longest TTL of this server", "node", m.nodes[i].Name(), "error", err)
	}
}

// epochBits is how many low bits of a bootstrap's epoch are random.
const epochBits = 10

// bootstrapEpoch makes an epoch for a bootstrap: from the wall clock, so that it is
// larger than any that a lost majority knew, with random low bits, so that no
// other admitter makes the same (rule 12). It is above what this server knows,
// too, in case that the clock has been set back.
func (m *Controller) bootstrapEpoch(largest node.Epoch) node.Epoch {
	clock := node.Epoch(time.Now().UnixMilli())<<epochBits | node.Epoch(m.cfg.Random.Below(1<<epochBits))
	return max(clock, m.rejoinEpoch(max(largest, m.epoch.current())))
}

// rejoinEpoch makes an epoch for a rejoin: just above the largest seen (rule 9).
// It does not follow the clock, so that a rejoin among nodes that missed a
// bootstrap stays below the bootstrap's epoch.
func (m *Controller) rejoinEpoch(largest node.Epoch) node.Epoch {
	const steps = 16
	return largest + 1 + node.Epoch(m.cfg.Random.Below(steps))
}
