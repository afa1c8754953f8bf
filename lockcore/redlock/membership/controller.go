package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// Controller observes the nodes of a set, with one goroutine for each, and carries out the plans that
// follow from the observations, one at a time.
//
// Many servers run a Controller for the same nodes, and the Controllers do not know of each other. So a
// plan may be outdated when it is carried out. Each of its steps is therefore a compare-and-set on the
// node, against the state from which the plan was made (a pin, an epoch). A step that comes too late
// changes nothing (ErrRaced). After every observation a new plan is made, from the observations alone.
type Controller struct {
	cfg      Config
	nodes    []node.Node
	cluster  node.Cluster
	base     time.Time       // steady time is counted from here, see readClock
	epoch    atomic.Int64    // see Epoch
	keyed    atomic.Int64    // see VotingEpoch
	looks    atomic.Int64    // numbers the observations in the order in which they begin
	nudges   []chan struct{} // by node: requests an observation now
	observed chan struct{}   // signalled when a node was observed
	// refreshed holds one value: when the last complete Observe began.
	refreshed chan time.Time

	mu          sync.Mutex
	seen        observations
	changed     chan struct{} // closed when a node was observed
	awaiting    arrivals
	clocks      []clockWatch
	own         ownJump
	backoff     time.Time // no admission is tried before this time
	failures    int
	compared    bool // a log line has said that this server has another longest TTL
	unconfirmed unconfirmedEpoch
	secrets     knownSecrets
	mapped      node.Map // the map by which the nodes vote
	// otherList is true until all nodes were observed (see OtherList). It is atomic and not guarded by
	// mu, because the Controllers of other sets read it while they hold their own mutex.
	otherList atomic.Bool
	mixed     time.Time // since when the nodes have had different maps; zero if they all have the same
}

// New makes a Controller, which does nothing before Run.
func New(cfg Config, nodes []node.Node) *Controller {
	c := &Controller{
		cfg: cfg, nodes: nodes, cluster: ClusterOf(nodes), base: time.Now(),
		observed: make(chan struct{}, 1), refreshed: make(chan time.Time, 1),
		clocks: make([]clockWatch, len(nodes)), changed: make(chan struct{}),
		seen: newObservations(nodes, time.Now()),
	}
	c.seen.knows, c.seen.sets = cfg.Knows, cfg.Sets
	c.refreshed <- time.Time{}
	c.otherList.Store(true)
	for _, n := range nodes {
		n.Join(c.cluster)
		c.nudges = append(c.nudges, make(chan struct{}, 1))
	}
	return c
}

// Cluster returns the name of the node set.
func (c *Controller) Cluster() node.Cluster { return c.cluster }

// Run observes and acts until ctx ends. Every goroutine has ended when it returns.
func (c *Controller) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range c.nodes {
		wg.Go(func() { c.watch(ctx, i) })
	}
	wg.Go(func() { c.act(ctx) })
	wg.Wait()
}

// Status describes the nodes as they were last observed.
func (c *Controller) Status() lockcore.ClusterStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	return c.seen.status(c.plan(now), now)
}

// plan returns the plan for the present observations. The caller holds c.mu.
func (c *Controller) plan(now time.Time) plan {
	c.seen.otherList = c.cfg.OtherList != nil && c.cfg.OtherList()
	return planFor(&c.seen, c.cfg, now)
}

// Refused requests an early observation of node i, which refused a request as not admitted. If that is
// known already, it does nothing: otherwise refused requests would raise the number of observations
// tenfold.
func (c *Controller) Refused(i int) {
	c.mu.Lock()
	news := c.seen.nodes[i].state == lockcore.NodeVoting
	c.mu.Unlock()
	if news {
		signal(c.nudges[i])
	}
}

// signal puts a signal into a channel with capacity 1, unless it holds one already.
func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// watch observes node i after every interval, and after every nudge.
func (c *Controller) watch(ctx context.Context, i int) {
	for {
		c.observeNode(ctx, i, idleProof)
		signal(c.observed)
		if !c.pause(ctx, i) {
			return
		}
	}
}

// pause waits for the next observation. It always waits a tenth of the interval at least, because nudges
// come as often as requests fail.
func (c *Controller) pause(ctx context.Context, i int) bool {
	if !pause.For(ctx, c.cfg.WatchInterval/10) {
		return false
	}
	timer := time.NewTimer(c.cfg.WatchInterval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-c.nudges[i]:
	}
	return true
}

const (
	// longestLook bounds an observation, so that no observed state is older than 2 s.
	longestLook = 1500 * time.Millisecond
	// idleProof is the maximum age of a node's last write while no caller asks whether the node is ready.
	// With it, two servers without clients make one write a minute.
	idleProof = 2 * time.Minute
)

// callTimeout returns the time limit of a call to a node.
func (c Config) callTimeout() time.Duration { return max(c.NodeDownAfter, c.WatchInterval) }

func (c Config) observeTimeout() time.Duration { return min(c.callTimeout(), longestLook) }

// observeNode observes node i. If the node's last write is older than proof, the node must also prove
// that it accepts writes.
func (c *Controller) observeNode(ctx context.Context, i int, proof time.Duration) {
	observing, cancel := context.WithTimeout(ctx, c.cfg.observeTimeout())
	defer cancel()
	before := c.lastSeen(i)
	look := c.looks.Add(1)
	seen, err := c.observeOrQuarantine(observing, i)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		c.checkHighWater(i, before, seen)
		if seen.Admitted && seen.Cluster == c.cluster {
			c.Learn(seen.Epoch)
		}
		c.readClock(observing, i)
		err = c.prove(observing, i, seen, proof)
	}
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if look < c.seen.nodes[i].look { // a later observation has ended earlier
		return
	}
	c.seen.nodes[i].look = look
	c.seen.add(i, seen, err, time.Now())
	c.adoptSecrets(time.Now())
	c.adoptMap(time.Now())
	c.otherList.Store(c.seen.outdated() || !c.seen.complete())
	c.judge()
	c.report(ctx, i)
	c.compareMaxTTL(ctx)
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Controller) lastSeen(i int) node.Observation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen.nodes[i].seen
}

// checkHighWater compares two observations of a node within one admission. The first must have ended
// before the second began.
func (c *Controller) checkHighWater(i int, before, now node.Observation) {
	same := before.Admitted && now.Admitted && before.Incarnation == now.Incarnation && before.Epoch == now.Epoch
	if same && now.Marks.HighWater < before.Marks.HighWater && c.cfg.Violated != nil {
		c.cfg.Violated(lockcore.HighWater, "node", c.nodes[i].Name(), "high_water", now.Marks.HighWater, "before", before.Marks.HighWater)
	}
}

// prove makes a node that may vote prove that it accepts writes.
func (c *Controller) prove(ctx context.Context, i int, seen node.Observation, within time.Duration) error {
	prover, ok := c.nodes[i].(node.Prover)
	if !ok || !seen.Admitted || seen.Unfit != "" || c.cfg.Watching {
		return nil
	}
	return prover.Prove(ctx, within)
}

// compareMaxTTL logs once that other servers have a different longest TTL, because all servers should have
// the same. It is still safe: the nodes record the longest TTL of all servers, and every wait is that long
// (rule 13). The caller holds c.mu.
func (c *Controller) compareMaxTTL(ctx context.Context) {
	for i := range c.seen.nodes {
		s := &c.seen.nodes[i]
		recorded := s.seen.Marks.MaxTTL
		if c.compared || c.cfg.Tool || !s.admitted() || recorded == 0 || recorded == c.cfg.MaxTTL {
			continue
		}
		c.compared = true
		logger := c.cfg.Logger.With("node", c.nodes[i].Name(), "server", c.cfg.MaxTTL.String(), "cluster", recorded.String())
		if recorded > c.cfg.MaxTTL {
			logger.WarnContext(ctx, "the longest TTL of this server is below that of the cluster, which stays in force for every wait, while this server grants no lease that long: set the same on every server")
		} else {
			logger.WarnContext(ctx, "the longest TTL of this server is above that of the cluster, which takes it over: set the same on every server")
		}
	}
}

// observeOrQuarantine observes node i. If the node is not admitted and not quarantined yet, it begins the
// quarantine.
func (c *Controller) observeOrQuarantine(ctx context.Context, i int) (node.Observation, error) {
	seen, err := c.nodes[i].Observe(ctx)
	if err != nil || seen.Admitted || seen.Note != "" || seen.Unfit != "" || !c.seen.ours(seen) {
		return seen, err
	}
	note := c.cfg.Random.Word()
	if err := c.nodes[i].Quarantine(ctx, note); err != nil {
		return seen, nil //nolint:nilerr // the observation is valid; the wait begins when the note is written
	}
	seen, err = c.nodes[i].Observe(ctx)
	if err != nil || seen.Note == note { // otherwise another server wrote its note first
		c.audit(ctx, actQuarantine, i, slog.String("why", "it is not admitted: it restarted, or is new"))
	}
	return seen, err
}

// judge updates every node's state. The caller holds c.mu.
func (c *Controller) judge() {
	now := time.Now()
	c.seen.judge(c.plan(now), now)
}

// settled is how long a node must have voted before the log reports that it votes again.
const settled = 10 * time.Second

// report logs a change of a node's state: at once if the node stops voting, and after settled if it votes
// again. A new reason without a new state is logged at most once a minute, because an unreachable node
// fails with many different errors. Waits at a first start are not logged as warnings.
func (c *Controller) report(ctx context.Context, i int) {
	s := &c.seen.nodes[i]
	now := time.Now()
	switch was := s.logged; {
	case s.state != was.state:
		if was.warned && s.state == lockcore.NodeVoting && now.Sub(s.since) < settled {
			return
		}
	case s.reason == was.reason, now.Sub(was.at) < time.Minute:
		return
	}
	level := slog.LevelInfo
	if first := s.state == lockcore.NodeQuarantined && (!c.seen.used || s.admitted() && s.seen.Marks.MaxTTL == 0); s.state != lockcore.NodeVoting && !first {
		level = slog.LevelWarn
	}
	c.cfg.Logger.Log(ctx, level, "node state",
		"node", c.nodes[i].Name(), "state", string(s.state), "was", string(s.logged.state), "reason", s.reason)
	s.logged = loggedState{state: s.state, reason: s.reason, at: now, warned: level == slog.LevelWarn}
}

// act carries out the plan after each observation.
func (c *Controller) act(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.observed:
		}
		c.step(ctx)
	}
}

// step carries out the plan for the present observations.
func (c *Controller) step(ctx context.Context) {
	c.mu.Lock()
	now := time.Now()
	p := c.plan(now)
	c.settleEpoch(p, now)
	wait := now.Before(c.backoff)
	c.mu.Unlock()
	for _, i := range c.judgeJumps() {
		c.expel(ctx, i)
	}
	c.update(ctx, p.oldEpoch, "the cluster's epoch", func(ctx context.Context, i int) error {
		_, err := c.nodes[i].InstallEpoch(ctx, p.epoch)
		return err
	})
	c.update(ctx, p.lowMaxTTL, "the longest TTL of this server", func(ctx context.Context, i int) error {
		return c.nodes[i].RaiseMaxTTL(ctx, c.cfg.MaxTTL)
	})
	c.update(ctx, p.lackSecrets, "the cluster's secret", func(ctx context.Context, i int) error {
		return c.addSecrets(ctx, i, p.secrets)
	})
	switch {
	case wait:
	case c.mapsDiffer(now):
		c.advanceMap(ctx, "map", sameMap)
	case len(p.admitted) >= quorum.Of(len(c.nodes)) && c.mapFollows():
		c.advanceMap(ctx, "next map", c.nextMap)
	case len(p.bootstrap) > 0:
		c.finish(ctx, "bootstrap", c.bootstrap(ctx, p))
	case len(p.rejoin) > 0:
		c.finish(ctx, "rejoin", c.rejoin(ctx, p))
	}
}

// update changes the records of admitted nodes.
func (c *Controller) update(ctx context.Context, nodes []int, what string, change func(context.Context, int) error) {
	c.forEach(ctx, nodes, func(calling context.Context, i int) {
		err := change(calling, i)
		if err == nil {
			signal(c.nudges[i])
		} else if ctx.Err() == nil {
			c.cfg.Logger.Warn("a node was not updated; the server tries again", "update", what, "node", c.nodes[i].Name(), "error", err)
		}
	})
}

// finish observes every node at once. After a failure it first sets a random backoff, because another
// server may be admitting the same node.
func (c *Controller) finish(ctx context.Context, what string, err error) {
	c.mu.Lock()
	c.failures++
	if err == nil {
		c.failures = 0
	} else {
		c.backoff = time.Now().Add(c.cfg.Random.Jitter(c.cfg.WatchInterval << min(c.failures, maxDoublings) / 4))
	}
	c.mu.Unlock()
	if err != nil && ctx.Err() == nil && !errors.Is(err, node.ErrRaced) {
		c.cfg.Logger.Warn("no node was admitted; the server tries again", "by", what, "error", err)
	}
	for i := range c.nodes {
		c.observeNode(ctx, i, idleProof)
	}
}

// maxDoublings limits times that double with each consecutive failure.
const maxDoublings = 5

// call makes one call of an admission. If the set has a single node, the time limit doubles with each
// failure: a slow store may need longer to delete all its rows, and a fixed limit would stop it every
// time. With several nodes, the others must not wait so long for one node.
func (c *Controller) call(ctx context.Context, what string, f func(context.Context) error) error {
	limit := max(time.Second, c.cfg.callTimeout())
	if len(c.nodes) == 1 {
		c.mu.Lock()
		limit <<= min(c.failures, maxDoublings)
		c.mu.Unlock()
	}
	calling, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := f(calling); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// ForAll calls f for every node concurrently, each call within a time limit.
func (c *Controller) ForAll(ctx context.Context, f func(context.Context, int)) {
	c.forEach(ctx, c.all(), f)
}

func (c *Controller) all() []int {
	all := make([]int, len(c.nodes))
	for i := range all {
		all[i] = i
	}
	return all
}

func (c *Controller) forEach(ctx context.Context, nodes []int, f func(context.Context, int)) {
	sideBySide(nodes, func(i int) {
		calling, cancel := context.WithTimeout(ctx, c.cfg.callTimeout())
		defer cancel()
		f(calling, i)
	})
}

// sideBySide calls f for the nodes concurrently, and waits for all calls.
func sideBySide(nodes []int, f func(i int)) {
	var wg sync.WaitGroup
	for _, i := range nodes {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// The acts on nodes, as named in the audit log.
const (
	actQuarantine = "quarantine-node"
	actAdmit      = "admit-node"
	actBootstrap  = "bootstrap-cluster"
)

// audit records an act on node i. Failures appear only in the log.
func (c *Controller) audit(ctx context.Context, act string, i int, more ...slog.Attr) {
	attrs := append([]slog.Attr{slog.String("act", act), slog.String("node", c.nodes[i].Name()), slog.String("result", "done")}, more...)
	c.cfg.Audit.LogAttrs(ctx, slog.LevelInfo, "audit", attrs...)
}
