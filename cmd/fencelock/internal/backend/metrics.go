package backend

import (
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/redlock/settings"
)

// nodeMetrics are the service's metrics about its nodes. The label "node" is host:port/database, so it
// has only a few values.
type nodeMetrics struct {
	votes, confirms, failures, jumps  *prometheus.CounterVec
	seconds, operations               *prometheus.HistogramVec
	memory, memoryLimit, leaks, ahead *prometheus.GaugeVec
	invariants                        *invariants
}

func newNodeMetrics(registry prometheus.Registerer, logger *slog.Logger) *nodeMetrics {
	auto := promauto.With(registry)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return auto.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"node"}, labels...))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return auto.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"node"})
	}
	histogram := func(name, help string, buckets ...float64) *prometheus.HistogramVec {
		return auto.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"node"})
	}
	return &nodeMetrics{
		votes:    counter("fencelock_node_votes_total", "Votes requested of a node for an acquire, by its reply.", "answer"),
		confirms: counter("fencelock_node_confirms_total", "Confirmations of a token requested of a node, by its reply.", "answer"),
		seconds: histogram("fencelock_node_batch_seconds", "Time from sending a batch of operations to a node until its reply, or until it failed.",
			.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5),
		operations:  histogram("fencelock_node_batch_operations", "Operations in a batch sent to a node.", 1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
		failures:    counter("fencelock_node_batch_failures_total", "Batches without a usable reply from a node."),
		memory:      gauge("fencelock_node_memory_used_bytes", "The memory that a Redis node uses, as it reports it."),
		memoryLimit: gauge("fencelock_node_memory_limit_bytes", "A Redis node's maxmemory; 0 for no limit."),
		leaks:       gauge("fencelock_node_leaked_locks", "Locks without an expiry that the last whole scan of a Redis node's keys found."),
		ahead:       gauge("fencelock_node_clock_ahead_seconds", "How far a node's clock is ahead of this server's: the median of the last round trips."),
		jumps:       counter("fencelock_node_clock_jumps_total", "Jumps of a node's clock relative to this server's."),
		invariants:  newInvariants(auto, logger),
	}
}

// noAnswer is the label of a vote that did not arrive in time. If it arrives later, it is counted again,
// with its outcome.
const noAnswer = "no_answer"

// voteMeter is a settings.Meter. Its counters are looked up once.
type voteMeter struct {
	votes, confirms [node.Outcomes]prometheus.Counter // by outcome
	missing, jumps  prometheus.Counter
	ahead           func() prometheus.Gauge
}

// ofVotes returns the Meter of the node with this name. The gauge of the node's clock appears with its
// first value, because the embedded node has no clock of its own.
func (m *nodeMetrics) ofVotes(name string) settings.Meter {
	v := &voteMeter{
		missing: m.votes.WithLabelValues(name, noAnswer),
		jumps:   m.jumps.WithLabelValues(name),
		ahead:   func() prometheus.Gauge { return m.ahead.WithLabelValues(name) },
	}
	for outcome := range node.Outcome(node.Outcomes) {
		v.votes[outcome] = m.votes.WithLabelValues(name, outcome.Metric())
	}
	for _, outcome := range []node.Outcome{node.Granted, node.NotHeld, node.StaleEpoch, node.NotAdmitted, node.Failed} {
		v.confirms[outcome] = m.confirms.WithLabelValues(name, outcome.Metric())
	}
	return v
}

func (v *voteMeter) Vote(o node.Outcome) { v.votes[o].Inc() }
func (v *voteMeter) NoAnswer()           { v.missing.Inc() }

func (v *voteMeter) Confirm(o node.Outcome) {
	counter := v.confirms[o]
	if counter == nil { // a correct node replies to a confirm with none of the other outcomes
		counter = v.confirms[node.Failed]
	}
	counter.Inc()
}

func (v *voteMeter) Clock(ahead time.Duration) { v.ahead().Set(ahead.Seconds()) }
func (v *voteMeter) Jump(time.Duration)        { v.jumps.Inc() }

// batchMeter is a redisnode.Meter and a replica.Meter.
type batchMeter struct {
	metrics             *nodeMetrics
	node                string
	seconds, operations prometheus.Observer
	failures            prometheus.Counter
}

func (m *nodeMetrics) ofBatches(node string) *batchMeter {
	return &batchMeter{
		metrics: m, node: node,
		seconds: m.seconds.WithLabelValues(node), operations: m.operations.WithLabelValues(node), failures: m.failures.WithLabelValues(node),
	}
}

func (b *batchMeter) Batch(operations int, took time.Duration, failed bool) {
	b.seconds.Observe(took.Seconds())
	b.operations.Observe(float64(operations))
	if failed {
		b.failures.Inc()
	}
}

func (b *batchMeter) Memory(used, limit int64) {
	b.metrics.memory.WithLabelValues(b.node).Set(float64(used))
	b.metrics.memoryLimit.WithLabelValues(b.node).Set(float64(limit))
}

func (b *batchMeter) Miscounted(operations, replies int) {
	b.metrics.invariants.violated(lockcore.BatchReplies, "node", b.node, "operations", operations, "replies", replies)
}

func (b *batchMeter) Leaked(locks int) { b.metrics.leaks.WithLabelValues(b.node).Set(float64(locks)) }

// clusterCollector reports the nodes' states at the time of each scrape.
type clusterCollector struct {
	sets       clusters
	queues     []queued
	maxWaiters int
}

// clusters is the interface to the node sets that clusterCollector needs.
type clusters interface {
	Statuses() []lockcore.ClusterStatus
	Waiting() []redlock.Waiting
}

// queued is a node's queue of operations.
type queued interface {
	Name() string
	Queue() (length, bound int)
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	stateDesc      = desc("fencelock_node_state", "1 for the state that a node is in, 0 for the others.", "node", "set", "state")
	sinceDesc      = desc("fencelock_node_state_seconds", "For how long a node has been in its state.", "node", "set")
	quarantineDesc = desc("fencelock_node_quarantine_remaining_seconds", "What is left of a quarantined node's wait; 0 for a node that is not quarantined.", "node", "set")
	readyDesc      = desc("fencelock_ready", "1 while a quorum of the node set may vote, as this server sees it.", "set")
	votingDesc     = desc("fencelock_nodes_voting", "Nodes that may vote, as this server sees it.", "set")
	quorumDesc     = desc("fencelock_nodes_quorum", "Nodes that must agree.", "set")
	waitersDesc    = desc("fencelock_waiters", "Requests that wait in the queue at this server.", "set")
	noQuorumDesc   = desc("fencelock_waiters_without_quorum", "Requests that wait in the queue at this server and cannot be granted, because too few nodes vote or reply.", "set")
	waitersMaxDesc = desc("fencelock_waiters_limit", "FENCELOCK_MAX_WAITERS.", "set")
	queueDesc      = desc("fencelock_node_queue_operations", "Operations that wait to be sent to a node.", "node")
	queueMaxDesc   = desc("fencelock_node_queue_limit", "Operations that may wait to be sent to a node; more fail at once.", "node")
)

// Describe implements prometheus.Collector.
func (c *clusterCollector) Describe(out chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(c, out)
}

// Collect implements prometheus.Collector.
func (c *clusterCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	waiting := c.sets.Waiting()
	for i, status := range c.sets.Statuses() {
		set := strconv.Itoa(i + 1)
		gauge(readyDesc, truth(status.Ready), set)
		gauge(votingDesc, float64(status.Voting), set)
		gauge(quorumDesc, float64(status.Quorum), set)
		gauge(waitersDesc, float64(waiting[i].Requests), set)
		gauge(noQuorumDesc, float64(waiting[i].NoQuorum), set)
		gauge(waitersMaxDesc, float64(c.maxWaiters), set)
		for _, node := range status.Nodes {
			for _, state := range []lockcore.NodeState{lockcore.NodeVoting, lockcore.NodeQuarantined, lockcore.NodeUnreachable, lockcore.NodeRefused} {
				gauge(stateDesc, truth(node.State == state), node.Name, set, string(state))
			}
			gauge(sinceDesc, node.Since.Seconds(), node.Name, set)
			gauge(quarantineDesc, node.Wait.Seconds(), node.Name, set)
		}
	}
	for _, node := range c.queues {
		length, bound := node.Queue()
		gauge(queueDesc, float64(length), node.Name())
		gauge(queueMaxDesc, float64(bound), node.Name())
	}
}

func truth(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
