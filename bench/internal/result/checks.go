package result

import (
	"fmt"
	"math"
)

// Verdict is how a check ended.
type Verdict string

// The verdicts.
const (
	Pass    Verdict = "pass"
	Miss    Verdict = "MISS"
	Unknown Verdict = "not measured"
)

// Check is one figure that must hold.
type Check struct {
	Group, Text string
	Want        string
	Got         float64
	Verdict     Verdict
	Remark      string
	Was         float64 // in the run that this one is compared with, or NaN
	Fell        bool    // by more than Fall
	more        bool    // is better
}

// target compares a value with a bound.
func target(group, text string, got float64, op string, bound float64, why string) Check {
	c := Check{Group: group, Text: text, Got: got, Want: fmt.Sprintf("%s %g", op, bound), Remark: why, more: op == "≥"}
	switch {
	case math.IsNaN(got):
		c.Verdict = Unknown
	case op == "≥" && got >= bound, op == "≤" && got <= bound, op == "<" && got < bound:
		c.Verdict = Pass
	default:
		c.Verdict = Miss
	}
	return c
}

// Names of peers and scenarios that the checks speak about.
const (
	HTTP      = "fencelock-http"
	HTTPKeyed = "fencelock-http-keyed"
	InProcess = "fencelock-inprocess"

	GoClient       = "go-client"
	GoClientSingle = "go-client-no-batches"

	Redislock   = "redislock"
	Rueidislock = "rueidislock"
	EtcdGRPC    = "etcd-grpc"
	EtcdJSON    = "etcd-json"
	PgAdvisory  = "pg-advisory"
	PgRow       = "pg-row"

	ZooKeeper = "zookeeper-recipe"

	HTTPPostgres  = "fencelock-http-postgres"
	HTTPZooKeeper = "fencelock-http-zookeeper"
	HTTPEtcd      = "fencelock-http-etcd"
	Bare          = "bare-batch"
	BareHTTP      = "bare-http"
	HTTPGuarded   = "fencelock-http-guarded"
	Unguarded     = "redsync-unguarded"

	Uncontended = "uncontended"
	Fsync       = "fsync"
	Hot         = "hot"
	Extend      = "extend"
	Contention  = "contention"
	Guarded     = "guarded"
	Faults      = "faults"
	Held        = "held"
	Scale       = "scale"
)

// HotVariant names a hot scenario: "64 waiters, 1 ms".
func HotVariant(waiters int, hold string) string { return fmt.Sprintf("%d waiters, %s", waiters, hold) }

// Checks compares the run with every figure that it measured and that must hold.
func (s *Set) Checks() []Check {
	var all []Check
	for _, group := range [][]Check{
		s.throughputChecks(), s.clientChecks(), s.floorChecks(), s.fsyncChecks(), s.etcdChecks(), s.engineChecks(), s.faultChecks(),
		s.hotChecks(), s.memoryChecks(), s.lineChecks(),
	} {
		all = append(all, group...)
	}
	for i := range all {
		all[i].compare(s.before)
	}
	return all
}

// versus is a ratio of the medians' kind: per round, then the median.
func (s *Set) versus(scenario, variant, a, b string, m Metric) float64 {
	return s.Ratio(Key{scenario, variant, a}, Key{scenario, variant, b}, m).Median
}

func (s *Set) throughputChecks() []Check {
	const group = "speed"
	pairs := func(variant, peer string, bound float64) Check {
		return target(group, peer+" ÷ redsync, pairs/s at "+variant,
			s.versus(Uncontended, variant, peer, Baseline, Rate), "≥", bound, "")
	}
	latency := func(variant, name string, m Metric, op string, bound float64) Check {
		return target(group, HTTP+" ÷ redsync, "+name+" of a pair at "+variant,
			s.versus(Uncontended, variant, HTTP, Baseline, m), op, bound, "")
	}
	return []Check{
		pairs("256", HTTP, 3), pairs("64", HTTP, 2.5), pairs("16", HTTP, 1.75),
		latency("64", "p50", PairP50, "<", 1), latency("64", "p99", PairP99, "<", 1),
		latency("256", "p50", PairP50, "<", 1), latency("256", "p99", PairP99, "<", 1),
		latency("1", "p50", PairP50, "≤", 1.5),
		pairs("256", InProcess, 8),
	}
}

// clientChecks are what one process gets that has many callers.
func (s *Set) clientChecks() (checks []Check) {
	const group = "one process"
	for i, variant := range []string{"64", "256"} {
		bound := []float64{3, 4}[i]
		checks = append(checks,
			target(group, GoClient+" ÷ redsync, pairs/s at "+variant, s.versus(Uncontended, variant, GoClient, Baseline, Rate), "≥", bound, ""),
			target(group, GoClient+" ÷ "+GoClientSingle+", pairs/s at "+variant, s.versus(Uncontended, variant, GoClient, GoClientSingle, Rate), "≥", 2.2, ""),                    //nolint:mnd // as agreed
			target(group, GoClient+" ÷ "+GoClientSingle+", processor time of a pair at "+variant, s.versus(Uncontended, variant, GoClient, GoClientSingle, AllCPU), "≤", 0.5, ""), //nolint:mnd // as agreed
		)
	}
	return append(checks,
		target(group, GoClient+" ÷ "+GoClientSingle+", p50 of a pair at 1", s.versus(Uncontended, "1", GoClient, GoClientSingle, PairP50), "≤", 1.05, "")) //nolint:mnd // the noise
}

// FloorOf is what the contender cannot be faster than in the same scenario and variant;
// ok is false if it has no floor.
func FloorOf(k Key) (floor Key, ok bool) {
	switch k.Peer {
	case HTTP, HTTPKeyed:
		k.Peer = BareHTTP
	case InProcess:
		k.Peer = Bare
	default:
		return Key{}, false
	}
	return k, true
}

func (s *Set) floorChecks() []Check {
	share := func(variant, peer string, bound float64) Check {
		k := Key{Uncontended, variant, peer}
		floor, _ := FloorOf(k)
		return target("floor", peer+" ÷ "+floor.Peer+", pairs/s at "+variant, s.Ratio(k, floor, Rate).Median, "≥", bound, "")
	}
	return []Check{
		share("64", InProcess, 0.75), share("256", InProcess, 0.75), share("64", HTTP, 0.55), share("256", HTTP, 0.55),
		target("floor", "nodes' time a pair ÷ "+Bare+"'s, at 256",
			s.versus(Uncontended, "256", InProcess, Bare, StoreCPU), "≤", 1.25, ""),
	}
}

func (s *Set) fsyncChecks() []Check {
	check := func(peer string, bound float64) Check {
		return target("speed", peer+" ÷ redsync, pairs/s at 256, appendfsync always",
			s.versus(Fsync, "256", peer, Baseline, Rate), "≥", bound, "")
	}
	return []Check{check(InProcess, 5), check(HTTP, 2.5)}
}

func (s *Set) etcdChecks() []Check {
	check := func(peer string, bound float64) Check {
		return target("speed", HTTP+" ÷ "+peer+", pairs/s at 256",
			s.versus(Uncontended, "256", HTTP, peer, Rate), "≥", bound, "etcd syncs to disk here; see the table with appendfsync always")
	}
	engine := func(variant, peer string, bound float64) Check {
		return target("speed", HTTPEtcd+" ÷ "+peer+", pairs/s at "+variant,
			s.versus(Uncontended, variant, HTTPEtcd, peer, Rate), "≥", bound, "on the same etcd")
	}
	return []Check{
		check(EtcdJSON, 3), check(EtcdGRPC, 1.5),
		engine("64", EtcdGRPC, 1), engine("256", EtcdGRPC, 1), engine("64", EtcdJSON, 2), engine("256", EtcdJSON, 2),
	}
}

func (s *Set) engineChecks() (checks []Check) {
	for _, pair := range [][2]string{{HTTPPostgres, PgRow}, {HTTPZooKeeper, ZooKeeper}} {
		for _, variant := range []string{"256", "64"} {
			checks = append(checks, target("speed", pair[0]+" ÷ "+pair[1]+", pairs/s at "+variant,
				s.versus(Uncontended, variant, pair[0], pair[1], Rate), "≥", 1, ""))
		}
	}
	return checks
}

func (s *Set) faultChecks() []Check {
	var checks []Check
	for _, fault := range []string{"frozen", "dead"} {
		against := func(m Metric) float64 {
			return s.Ratio(Key{Faults, fault, HTTP}, Key{Faults, "healthy", HTTP}, m).Median
		}
		checks = append(checks,
			target("speed", "one node "+fault+" ÷ healthy, pairs/s", against(Rate), "≥", 0.9, ""),
			target("speed", "one node "+fault+" ÷ healthy, p99 of a pair", against(PairP99), "≤", 1.5, ""))
	}
	return checks
}

func (s *Set) hotChecks() []Check {
	const group = "speed"
	var checks []Check
	for _, c := range []struct {
		waiters int
		rate    float64
	}{{16, 5}, {64, 2.2}} {
		variant := HotVariant(c.waiters, "1 ms")
		text := fmt.Sprintf("%s ÷ redsync, %d waiters, 1 ms: ", HTTP, c.waiters)
		checks = append(checks,
			target(group, text+"hand-offs/s", s.versus(Hot, variant, HTTP, Baseline, Rate), "≥", c.rate, ""),
			target(group, text+"p99 of a hand-off", s.versus(Hot, variant, HTTP, Baseline, HandoffP99), "≤", 0.1, ""),
			target(group, fmt.Sprintf("hand-off ÷ uncontended acquire over HTTP, p50, %d waiters, 1 ms", c.waiters),
				s.handoffToAcquire(variant, HandoffP50), "<", 2, s.handoffRemark(variant)))
	}
	free := s.Of(Key{Hot, HotVariant(16, "no hold"), HTTP}, Rate).Median
	scaled := free * 7000 / s.Of(Key{Uncontended, "64", Baseline}, Rate).Median
	return append(checks, target(group, "hand-offs/s, 16 waiters, no hold, on a machine of 7,000 redsync pairs", scaled, "≥", 4000,
		remark("scaled by redsync at 64; measured %.0f", free)))
}

// handoffToAcquire is a median of hand-offs over the median uncontended acquire
// of a single client.
func (s *Set) handoffToAcquire(variant string, m Metric) float64 {
	return s.Of(Key{Hot, variant, HTTP}, m).Median / s.Of(Key{Uncontended, "1", HTTP}, AcquireP50).Median
}

// handoffRemark is the same, counted from the sending of the release.
func (s *Set) handoffRemark(variant string) string {
	return remark("counted from the sending of the release: %.2f", s.handoffToAcquire(variant, TurnoverP50))
}

// remark is empty where there is no number.
func remark(format string, v float64) string {
	if math.IsNaN(v) {
		return ""
	}
	return fmt.Sprintf(format, v)
}

func (s *Set) memoryChecks() []Check {
	const group = "speed"
	held := s.Ratio(Key{Held, "held", HTTP}, Key{Held, "none held", HTTP}, AcquireP50).Median
	return []Check{
		target(group, "Redis, bytes a held lease on each node", s.Value("held redis bytes"), "≤", 400, s.heldRemark()),
		target(group, "server, bytes a held lease", s.Value("held server bytes"), "<", 1024, s.heldRemark()),
		target(group, "acquire with them held ÷ without, p50", held, "≤", 1.1, s.heldRemark()),
		target(group, "soak: server memory at the end ÷ after the first tenth", s.Value("soak server growth"), "≤", 1.1, "only with -soak"),
		target(group, "soak: Redis memory at the end ÷ after the first tenth", s.Value("soak redis growth"), "≤", 1.1, "only with -soak"),
	}
}

func (s *Set) heldRemark() string { return remark("%.0f leases", s.Value("held leases")) }

// allParked is how many waiters the figures are about.
const allParked = 10_000

// lineChecks are those of waiting in line.
func (s *Set) lineChecks() []Check {
	const group = "waiting in line"
	var checks []Check
	for _, waiters := range []int{16, 64} {
		checks = append(checks, target(group, fmt.Sprintf("hand-off ÷ uncontended acquire over HTTP, p50, %d waiters, 1 ms", waiters),
			s.handoffToAcquire(HotVariant(waiters, "1 ms"), HandoffP50), "<", 3, s.handoffRemark(HotVariant(waiters, "1 ms"))))
	}
	for _, hold := range []string{"no hold", "1 ms"} {
		many := s.Ratio(Key{Hot, HotVariant(1024, hold), HTTP}, Key{Hot, HotVariant(16, hold), HTTP}, Rate).Median
		checks = append(checks, target(group, "hand-offs/s with 1,024 waiters ÷ with 16, "+hold, many, "≥", 0.8, ""))
	}
	memory, core := s.Value("parked server MB"), s.Value("parked server core")
	if s.Value("parked waiters") < allParked {
		memory, core = math.NaN(), math.NaN() // fewer prove nothing
	}
	return append(checks,
		target(group, "server memory with 10,000 parked waiters, MB", memory, "<", 450, ""),
		target(group, "server's share of one core while they wait", core, "<", 0.05, ""))
}
