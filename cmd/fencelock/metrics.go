package main

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// nodeMetrics are what the service tells about its nodes. The label "node" is
// host:port/database, of which a configuration names a handful.
type nodeMetrics struct {
	votes, confirms *prometheus.CounterVec
	seconds         *prometheus.HistogramVec
	operations      *prometheus.HistogramVec
	failures        *prometheus.CounterVec
	memory, most    *prometheus.GaugeVec
	leaked          *prometheus.GaugeVec
	ahead           *prometheus.GaugeVec
	jumps           *prometheus.CounterVec
}

func newNodeMetrics(registry prometheus.Registerer) *nodeMetrics {
	m := &nodeMetrics{
		votes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencelock_node_votes_total",
			Help: "Votes asked of a node for an acquire, by its answer.",
		}, []string{"node", "answer"}),
		confirms: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencelock_node_confirms_total",
			Help: "Confirmations of a token asked of a node, by its answer.",
		}, []string{"node", "answer"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fencelock_node_batch_seconds",
			Help:    "Time from the sending of a batch of operations to a node until its answer, or until it failed.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"node"}),
		operations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fencelock_node_batch_operations",
			Help:    "Operations in a batch sent to a node.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512},
		}, []string{"node"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencelock_node_batch_failures_total",
			Help: "Batches that a node did not answer, or not usably.",
		}, []string{"node"}),
		memory: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fencelock_node_memory_used_bytes",
			Help: "What a Redis node's memory holds, as it says itself.",
		}, []string{"node"}),
		most: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fencelock_node_memory_limit_bytes",
			Help: "A Redis node's maxmemory; 0 where nothing limits it.",
		}, []string{"node"}),
		leaked: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fencelock_node_leaked_locks",
			Help: "Locks without an expiry that the last whole look at a Redis node's keys found.",
		}, []string{"node"}),
		ahead: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fencelock_node_clock_ahead_seconds",
			Help: "By how much a node's clock is ahead of this server's: the median of the last round trips.",
		}, []string{"node"}),
		jumps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencelock_node_clock_jumps_total",
			Help: "Jumps of a node's clock against this server's.",
		}, []string{"node"}),
	}
	registry.MustRegister(m.votes, m.confirms, m.seconds, m.operations, m.failures, m.memory, m.most, m.leaked, m.ahead, m.jumps)
	return m
}

// answers names the outcomes of votes and confirmations.
func answers() map[node.Outcome]string {
	return map[node.Outcome]string{
		node.Failed: "failed", node.Granted: "granted", node.Held: "held", node.NotHeld: "not_held",
		node.Queued: "queued", node.OtherResource: "idempotency_mismatch", node.StaleEpoch: "stale_epoch",
		node.NotAdmitted: "not_admitted", node.Exhausted: "tokens_exhausted",
	}
}

// noAnswer is the answer of a node that has given none in time. What it says
// later is counted once more, under what it says.
const noAnswer = "no_answer"

// voteMeter is a redlock.Meter.
type voteMeter struct {
	votes, confirms [node.Exhausted + 1]prometheus.Counter // by outcome
	silent          prometheus.Counter
	ahead           func(float64)
	jumps           prometheus.Counter
}

// ofVotes is the Meter of the node of that name. The gauge of its clock appears
// with its first word: the embedded node has no clock of its own.
func (m *nodeMetrics) ofVotes(name string) redlock.Meter {
	v := &voteMeter{
		silent: m.votes.WithLabelValues(name, noAnswer),
		jumps:  m.jumps.WithLabelValues(name),
		ahead:  func(seconds float64) { m.ahead.WithLabelValues(name).Set(seconds) },
	}
	for outcome, answer := range answers() {
		v.votes[outcome] = m.votes.WithLabelValues(name, answer)
	}
	for _, outcome := range []node.Outcome{node.Granted, node.NotHeld, node.StaleEpoch, node.NotAdmitted, node.Failed} {
		v.confirms[outcome] = m.confirms.WithLabelValues(name, answers()[outcome])
	}
	return v
}

func (v *voteMeter) Vote(o node.Outcome) { v.votes[o].Inc() }
func (v *voteMeter) NoAnswer()           { v.silent.Inc() }

func (v *voteMeter) Confirm(o node.Outcome) {
	counter := v.confirms[o]
	if counter == nil { // nothing that a sound node says to a confirm
		counter = v.confirms[node.Failed]
	}
	counter.Inc()
}

func (v *voteMeter) Clock(ahead time.Duration) { v.ahead(ahead.Seconds()) }
func (v *voteMeter) Jump(time.Duration)        { v.jumps.Inc() }

// batchMeter is a redisnode.Meter and a replica.Meter.
type batchMeter struct {
	seconds, operations prometheus.Observer
	failures            prometheus.Counter
	memory              func(used, most float64)
	leaked              func(float64)
}

func (m *nodeMetrics) ofBatches(node string) *batchMeter {
	return &batchMeter{
		seconds:    m.seconds.WithLabelValues(node),
		operations: m.operations.WithLabelValues(node),
		failures:   m.failures.WithLabelValues(node),
		memory: func(used, most float64) {
			m.memory.WithLabelValues(node).Set(used)
			m.most.WithLabelValues(node).Set(most)
		},
		leaked: func(locks float64) { m.leaked.WithLabelValues(node).Set(locks) },
	}
}

func (b *batchMeter) Batch(operations int, took time.Duration, failed bool) {
	b.seconds.Observe(took.Seconds())
	b.operations.Observe(float64(operations))
	if failed {
		b.failures.Inc()
	}
}

func (b *batchMeter) Memory(used, most int64) { b.memory(float64(used), float64(most)) }
func (b *batchMeter) Leaked(locks int)        { b.leaked(float64(locks)) }

// clusterCollector tells the nodes' states as they are at each scrape.
type clusterCollector struct {
	sets clusters

	state, quarantine, since                *prometheus.Desc
	ready, voting, quorum, waiters, waitMax *prometheus.Desc
	queue, queueMax                         *prometheus.Desc
	maxWaiters                              int
	queues                                  []queued
}

// clusters are the node sets, as clusterCollector sees them.
type clusters interface {
	Statuses() []lockcore.ClusterStatus
	Waiting() []int
}

// queued is a node's queue of operations.
type queued interface {
	Name() string
	Queue() (length, bound int)
}

func newClusterCollector(sets clusters, queues []queued, maxWaiters int) *clusterCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &clusterCollector{
		sets: sets, queues: queues, maxWaiters: maxWaiters,
		state:      desc("fencelock_node_state", "1 for the state that a node is in, 0 for the others.", "node", "set", "state"),
		since:      desc("fencelock_node_state_seconds", "For how long a node has been in its state.", "node", "set"),
		quarantine: desc("fencelock_node_quarantine_remaining_seconds", "What is left of a quarantined node's wait; 0 for a node that is not quarantined.", "node", "set"),
		ready:      desc("fencelock_ready", "1 while a quorum of the node set may vote, as this server sees it.", "set"),
		voting:     desc("fencelock_nodes_voting", "Nodes that may vote, as this server sees it.", "set"),
		quorum:     desc("fencelock_nodes_quorum", "Nodes that must agree.", "set"),
		waiters:    desc("fencelock_waiters", "Acquires that stand in the queue at this server.", "set"),
		waitMax:    desc("fencelock_waiters_limit", "FENCELOCK_MAX_WAITERS.", "set"),
		queue:      desc("fencelock_node_queue_operations", "Operations that wait to be sent to a node.", "node"),
		queueMax:   desc("fencelock_node_queue_limit", "Operations that may wait to be sent to a node; more fail at once.", "node"),
	}
}

// Describe is of prometheus.Collector.
func (c *clusterCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.state, c.since, c.quarantine, c.ready, c.voting, c.quorum, c.waiters, c.waitMax, c.queue, c.queueMax} {
		out <- d
	}
}

// Collect is of prometheus.Collector.
func (c *clusterCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	waiting := c.sets.Waiting()
	for i, status := range c.sets.Statuses() {
		set := strconv.Itoa(i + 1)
		gauge(c.ready, truth(status.Ready), set)
		gauge(c.voting, float64(status.Voting), set)
		gauge(c.quorum, float64(status.Quorum), set)
		gauge(c.waiters, float64(waiting[i]), set)
		gauge(c.waitMax, float64(c.maxWaiters), set)
		for _, node := range status.Nodes {
			for _, state := range []lockcore.NodeState{lockcore.NodeVoting, lockcore.NodeQuarantined, lockcore.NodeUnreachable, lockcore.NodeRefused} {
				gauge(c.state, truth(node.State == state), node.Name, set, string(state))
			}
			gauge(c.since, node.Since.Seconds(), node.Name, set)
			gauge(c.quarantine, node.Wait.Seconds(), node.Name, set)
		}
	}
	for _, node := range c.queues {
		length, bound := node.Queue()
		gauge(c.queue, float64(length), node.Name())
		gauge(c.queueMax, float64(bound), node.Name())
	}
}

func truth(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// buildInfo names the version that runs.
func buildInfo() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "fencelock_build_info",
		Help:        "1, with the version as a label.",
		ConstLabels: prometheus.Labels{"version": version()},
	}, func() float64 { return 1 })
}
