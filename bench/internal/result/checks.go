package result

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Verdict is the result of a check.
type Verdict string

// The verdicts.
const (
	Pass    Verdict = "pass"
	Miss    Verdict = "MISS"
	Watched Verdict = "" // a figure without a bound
	Unknown Verdict = "not measured"
)

// Check is a figure with a bound, or a figure that is only compared with the committed run.
type Check struct {
	Text    string
	Want    string
	Got     float64
	Verdict Verdict
	Remark  string
	Was     float64 // the value in the committed run, or NaN
	Fell    bool    // the figure is worse than in the committed run by more than Fall
	more    bool    // a larger value is better
}

// must compares a value with a bound.
func must(text string, got float64, op string, bound float64) Check {
	c := Check{Text: text, Got: got, Want: fmt.Sprintf("%s %g", op, bound), more: op == "≥"}
	switch {
	case math.IsNaN(got):
		c.Verdict = Unknown
	case op == "≥" && got >= bound, op == "≤" && got <= bound:
		c.Verdict = Pass
	default:
		c.Verdict = Miss
	}
	return c
}

// watch makes a check without a bound.
func watch(text string, got float64, more bool) Check {
	c := Check{Text: text, Got: got, Verdict: Watched, more: more}
	if math.IsNaN(got) {
		c.Verdict = Unknown
	}
	return c
}

// The names of the peers and scenarios that appear in checks.
const (
	HTTP      = "fencelock-http"
	HTTPNear  = "fencelock-http-near"
	Beside    = "fencelock-http-beside"
	InProcess = "fencelock-inprocess"

	GoClient       = "go-client"
	GoClientSingle = "go-client-no-batches"
	PythonTasks    = "python-asyncio"
	PythonThreads  = "python-threads"
	TypeScript     = "typescript"

	Redislock = "redislock"
	EtcdGRPC  = "etcd-grpc"
	EtcdJSON  = "etcd-json"
	PgRow     = "pg-row"

	ZooKeeper = "zookeeper-recipe"

	HTTPPostgres  = "fencelock-http-postgres"
	HTTPZooKeeper = "fencelock-http-zookeeper"
	HTTPEtcd      = "fencelock-http-etcd"
	Bare          = "bare-batch"
	BareHTTP      = "bare-http"
	HTTPFile      = "fencelock-http-file"
	BareFile      = "bbolt-batch"

	Uncontended = "uncontended"
	Fsync       = "fsync"
	Hot         = "hot"
	Faults      = "faults"
	Clients     = "clients"
	Connections = "connections"
	Network     = "network"
	Starved     = "starved"
)

// HotVariant names a hot scenario: "64 waiters".
func HotVariant(waiters int) string { return fmt.Sprintf("%d waiters", waiters) }

// NetworkVariant names a round trip: "0.5 ms".
func NetworkVariant(trip time.Duration) string {
	return fmt.Sprintf("%g ms", float64(trip.Microseconds())/1000)
}

// Checks returns every figure that has a bound, followed by those that are only watched.
func (s *Set) Checks() []Check {
	all := slices.Concat(
		s.speedChecks(), s.overloadChecks(), s.clientChecks(), s.networkChecks(), s.postgresChecks(), s.faultChecks(),
		s.watchedSpeed(), s.watchedClients(), s.watchedFile(), s.watchedHandoffs())
	for i := range all {
		all[i].compare(s.before)
	}
	return all
}

// versus divides a's metric by b's in each round, and returns the median of the ratios.
func (s *Set) versus(scenario, variant, a, b string, m Metric) float64 {
	return s.Ratio(Key{scenario, variant, a}, Key{scenario, variant, b}, m).Median
}

// speedChecks: over HTTP, a pair must cost less than a redsync pair in the caller's own process.
func (s *Set) speedChecks() (checks []Check) {
	for _, workers := range []string{"16", "64", "256"} {
		checks = append(checks, must(HTTP+" ÷ redsync, pairs/s at "+workers, s.versus(Uncontended, workers, HTTP, Baseline, Rate), "≥", 1))
	}
	for _, workers := range []string{"64", "256"} {
		checks = append(checks,
			must(HTTP+" ÷ redsync, p50 of a pair at "+workers, s.versus(Uncontended, workers, HTTP, Baseline, PairP50), "≤", 1),
			must(HTTP+" ÷ redsync, p99 of a pair at "+workers, s.versus(Uncontended, workers, HTTP, Baseline, PairP99), "≤", 1))
	}
	return checks
}

// overloadChecks: with processors that other programs keep busy, and with many connections.
func (s *Set) overloadChecks() (checks []Check) {
	const few, share = 0.001, 0.9
	for _, workers := range []string{"64", "256"} {
		k := Key{Starved, workers, HTTP}
		checks = append(checks,
			must("starved: "+HTTP+" ÷ redsync's best, pairs/s at "+workers, s.RatioToBest(k, Baseline, Rate).Median, "≥", share),
			must("starved: share that fails at "+workers, s.failedShare(k), "≤", few))
	}
	for _, workers := range []string{"1024", "4096"} {
		k := Key{Connections, workers, HTTP}
		checks = append(checks,
			must("connections: pairs/s at "+workers+" ÷ at 256", s.Ratio(k, Key{Connections, "256", HTTP}, Rate).Median, "≥", share),
			must("connections: share that fails at "+workers, s.failedShare(k), "≤", 0))
	}
	return checks
}

// clientChecks: many callers of one client must not be slower than with redsync, and batches must cost one caller
// nothing.
func (s *Set) clientChecks() (checks []Check) {
	const noise = 1.05
	for _, workers := range []string{"64", "256"} {
		checks = append(checks, must(GoClient+" ÷ redsync, pairs/s at "+workers, s.versus(Clients, workers, GoClient, Baseline, Rate), "≥", 1))
	}
	return append(checks, must(GoClient+" ÷ "+GoClientSingle+", p50 of a pair at 1", s.versus(Clients, "1", GoClient, GoClientSingle, PairP50), "≤", noise))
}

// watchedClients: what batches save.
func (s *Set) watchedClients() (checks []Check) {
	for _, workers := range []string{"64", "256"} {
		checks = append(checks,
			watch(GoClient+" ÷ "+GoClientSingle+", pairs/s at "+workers, s.versus(Clients, workers, GoClient, GoClientSingle, Rate), true),
			watch(GoClient+" ÷ "+GoClientSingle+", processor time of a pair at "+workers, s.versus(Clients, workers, GoClient, GoClientSingle, AllCPU), false))
	}
	return checks
}

// networkChecks: the latency of one worker with a network between it and the servers. Over HTTP an operation is two
// trips, and redsync makes one.
func (s *Set) networkChecks() []Check {
	const trip, twice = 500 * time.Microsecond, 2.2
	text := fmt.Sprintf("%s ÷ redsync, p50 of a pair at 1 with a round trip of %s", HTTP, NetworkVariant(trip))
	near := s.versus(Network, NetworkVariant(trip), HTTPNear, Baseline, PairP50)
	c := must(text, s.versus(Network, NetworkVariant(trip), HTTP, Baseline, PairP50), "≤", twice)
	c.Remark = remark("with the server beside its nodes: %.2f", near)
	return []Check{c}
}

// postgresChecks: compared with a handwritten table of leases.
func (s *Set) postgresChecks() []Check {
	const slower, faster = 2.2, 1.2
	pairs := func(workers string) Check {
		return must(HTTPPostgres+" ÷ "+PgRow+", pairs/s at "+workers, s.versus(Uncontended, workers, HTTPPostgres, PgRow, Rate), "≥", faster)
	}
	return []Check{
		must(HTTPPostgres+" ÷ "+PgRow+", p50 of a pair at 1", s.versus(Uncontended, "1", HTTPPostgres, PgRow, PairP50), "≤", slower),
		pairs("64"), pairs("256"),
	}
}

// watchedFile: the embedded file, which is what everybody starts with, beside a loop over the same library in the
// worker's process, and beside HTTP without a lock.
func (s *Set) watchedFile() (checks []Check) {
	for _, workers := range []string{"64", "256"} {
		for _, floor := range []string{BareFile, BareHTTP} {
			checks = append(checks, watch(HTTPFile+" ÷ "+floor+", pairs/s at "+workers, s.versus(Uncontended, workers, HTTPFile, floor, Rate), true))
		}
	}
	return checks
}

// faultChecks: how much throughput and latency change when one node of five is down.
func (s *Set) faultChecks() (checks []Check) {
	const pairs, p99 = 0.9, 1.5
	for _, fault := range []string{"frozen", "dead"} {
		against := func(m Metric) float64 {
			return s.Ratio(Key{Faults, fault, HTTP}, Key{Faults, "healthy", HTTP}, m).Median
		}
		checks = append(checks,
			must("one node "+fault+" ÷ healthy, pairs/s", against(Rate), "≥", pairs),
			must("one node "+fault+" ÷ healthy, p99 of a pair", against(PairP99), "≤", p99))
	}
	return checks
}

// FloorOf returns the floor of a contender, which it can't be faster than, in the same scenario
// and variant; ok is false if it has no floor.
func FloorOf(k Key) (floor Key, ok bool) {
	switch k.Peer {
	case HTTP:
		k.Peer = BareHTTP
	case InProcess:
		k.Peer = Bare
	case HTTPFile:
		k.Peer = BareFile
	default:
		return Key{}, false
	}
	return k, true
}

// watchedSpeed: ratios to other contenders.
func (s *Set) watchedSpeed() (checks []Check) {
	pairs := func(a, b, workers string) {
		checks = append(checks, watch(a+" ÷ "+b+", pairs/s at "+workers, s.versus(Uncontended, workers, a, b, Rate), true))
	}
	pairs(InProcess, Baseline, "256")
	for _, workers := range []string{"64", "256"} {
		pairs(HTTPEtcd, EtcdJSON, workers)
		pairs(HTTPZooKeeper, ZooKeeper, workers)
	}
	return append(checks, watch(HTTP+" ÷ redsync, p50 of a pair at 1", s.versus(Uncontended, "1", HTTP, Baseline, PairP50), false))
}

func (s *Set) watchedHandoffs() (checks []Check) {
	for _, waiters := range []int{16, 64} {
		checks = append(checks, watch(fmt.Sprintf("%s ÷ redsync, hand-offs/s with %d waiters", HTTP, waiters),
			s.versus(Hot, HotVariant(waiters), HTTP, Baseline, Rate), true))
	}
	return checks
}

// remark returns "" if the value is NaN.
func remark(format string, v float64) string {
	if math.IsNaN(v) {
		return ""
	}
	return fmt.Sprintf(format, v)
}
