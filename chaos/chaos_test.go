package chaos

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var (
	runFor    = flag.Duration("for", 0, "TestChaos: how long to run; 0: a minute, in make verify")
	seed      = flag.Uint64("seed", 0, "TestChaos: of the schedule; 0 draws one")
	clients   = flag.Int("clients", 100, "TestChaos: goroutines")
	resources = flag.Int("resources", 12, "TestChaos: that they compete for")
	maxTTL    = flag.Duration("max-ttl", 3*time.Second, "TestChaos: the longest lease")
	hold      = flag.Duration("hold", 4*time.Second, "TestChaos: how long a fault lasts")
	within    = flag.Duration("at-once", 3*time.Second, "TestChaos: how long a busy machine may keep the service away while a quorum is there")
	engine    = flag.String("engine", "", "TestChaos: keep the locks in this engine instead of Redis: etcd, postgres or zookeeper")
	only      = flag.String("only", "", "TestChaos: only faults whose name contains this")
	keep      = flag.Bool("keep", false, "TestChaos: save the histories of all rounds, not of failed ones only")
	out       = flag.String("out", os.TempDir(), "TestChaos: the folder for the report and the histories of failed rounds")
)

// short is a stand for a test of about a minute: a lost node is silent for only a second, and a machine that is busy
// with other tests is forgiven much.
func short(t *testing.T) Config {
	t.Helper()
	return Config{
		Clients: 24, Resources: 6, MaxTTL: 2 * time.Second, NodeTimeout: 200 * time.Millisecond,
		Think: 150 * time.Millisecond, Hold: 600 * time.Millisecond, AtOnce: 8 * time.Second, Seed: 1, Dir: os.TempDir(),
	}
}

// TestFaults makes some of the faults of TestSoakEveryFault for a short while each. No promise is broken.
func TestFaults(t *testing.T) {
	t.Parallel()
	calm := short(t)
	calm.Think *= 3 // a busy machine would be most of what it costs
	tryOn(t, Start(t, calm), []Fault{named(t, "Postgres killed"), named(t, "majority lost")})
}

func TestMoreFaults(t *testing.T) {
	testenv.Long(t, "a failover, a partition or a clock that real processes do not survive")
	tryNamed(t, "none", "fail-over and fail-back", "partition of two nodes", "clock of a node +20 s")
}

func tryNamed(t *testing.T, names ...string) {
	t.Helper()
	var faults []Fault
	for _, name := range names {
		faults = append(faults, named(t, name))
	}
	tryFaults(t, faults)
}

// TestSoakEveryFault makes every fault for a short while.
func TestSoakEveryFault(t *testing.T) {
	testenv.Soak(t, "a fault of the list that the service does not survive alone; TestChaos draws some of them")
	tryFaults(t, Faults())
}

// TestSoakEngine makes the faults of a Postgres for a short while each. A ZooKeeper needs up to half a minute to be
// back, so it is not tested here: make chaos CHAOS="-engine zookeeper".
func TestSoakEngine(t *testing.T) {
	testenv.Soak(t, "a fault of Postgres that the service does not survive")
	e := startPostgresEngine(t, servers)
	tryOn(t, StartEngine(t, short(t), e), ofEngine(e))
}

// TestSoakEtcd makes the faults that only an etcd can have, for a short while each. The others are as with a
// Postgres: make chaos CHAOS="-engine etcd".
func TestSoakEtcd(t *testing.T) {
	testenv.Soak(t, "a fault of etcd that the service does not survive")
	e := startEtcdEngine(t, servers)
	tryOn(t, StartEngine(t, short(t), e), slices.DeleteFunc(ofEngine(e), func(f Fault) bool {
		return !slices.Contains([]string{
			"engine: SIGSTOP of the leader", "engine: partition of the leader", "engine: partition of a follower", "engine: restore of a snapshot",
		}, f.Name)
	}))
}

func tryFaults(t *testing.T, faults []Fault) {
	t.Helper()
	tryOn(t, Start(t, short(t)), faults)
}

func tryOn(t *testing.T, s *Stand, faults []Fault) {
	t.Helper()
	for _, f := range faults {
		t.Run(f.Name, func(t *testing.T) {
			if f.Jumps && s.NoClocks != nil {
				t.Skipf("CLOCKS CANNOT BE SHIFTED HERE, so this fault was not tried: %v", s.NoClocks)
			}
			result := s.Run(f)
			for _, v := range result.Violations {
				t.Error(v)
			}
			t.Logf("%+v", result)
		})
	}
}

// TestChaos is `make chaos`: faults drawn from a seed, one or two at a time, for
// as long as asked.
func TestChaos(t *testing.T) {
	if *runFor == 0 {
		testenv.Long(t, "faults that come two at a time, from a seed of its own")
		*runFor = time.Minute
	}
	if *seed == 0 {
		*seed = rand.Uint64() >> 32
	}
	if err := os.MkdirAll(*out, 0o750); err != nil { // now, not when the hour is over
		t.Fatal(err)
	}
	config := Config{
		Clients: *clients, Resources: *resources, MaxTTL: *maxTTL, NodeTimeout: *maxTTL / 20,
		Think: 300 * time.Millisecond, Hold: *hold, AtOnce: *within, Seed: *seed, Dir: *out, Keep: *keep,
	}
	s := startAsked(t, config)
	fmt.Printf("chaos: seed %d, %s, %d clients, %d resources, longest TTL %s\n", *seed, *runFor, *clients, *resources, *maxTTL)
	if s.NoClocks != nil {
		fmt.Printf("chaos: NO CLOCK WILL BE SHIFTED: %v\n", s.NoClocks)
	}
	report := runChaos(t, s)
	path := filepath.Join(*out, fmt.Sprintf("chaos-%d.md", *seed))
	if err := os.WriteFile(path, []byte(report.Markdown()+"\n"), 0o600); err != nil {
		t.Error(err)
	}
	fmt.Printf("\n%s\n\nchaos: report in %s\n", report.Markdown(), path)
}

// startAsked starts the stand that -engine names.
func startAsked(t *testing.T, config Config) *Stand {
	t.Helper()
	start, known := engines[*engine]
	switch {
	case *engine == "":
		return Start(t, config)
	case !known:
		t.Fatalf("there is no engine %q", *engine)
	}
	return StartEngine(t, config, start(t, servers))
}

// runChaos runs rounds until the time is over.
func runChaos(t *testing.T, s *Stand) *Report {
	t.Helper()
	report := &Report{Seed: s.config.Seed, Began: time.Now(), NoClocks: s.NoClocks}
	schedule := newSchedule(s.config.Seed, chosen(t, s))
	for round := 1; time.Since(report.Began) < *runFor; round++ {
		result := s.Run(schedule.next()...)
		report.Add(result)
		fmt.Printf("%6s round %d: %s: %d leases, %d writes, %d stale refused, %s without service (%s); %s\n",
			time.Since(report.Began).Round(time.Second), round, strings.Join(result.Faults, " + "),
			result.Acquisitions, result.Writes, result.Stale, tenths(result.Away), result.Gap, result.Vacant)
		for _, v := range result.Unexcused {
			fmt.Println("       vacant:", v)
		}
		for _, v := range result.Violations {
			t.Errorf("seed %d, round %d (%s): %s", *seed, round, strings.Join(result.Faults, " + "), v)
			fmt.Println("VIOLATION:", v)
		}
	}
	return report
}

// chosen returns the faults that were asked for and are possible on this machine.
func chosen(t *testing.T, s *Stand) (faults []Fault) {
	t.Helper()
	all := Faults()
	if s.engine != nil {
		all = EngineFaults(s.engine)
	}
	for _, f := range all {
		if strings.Contains(f.Name, *only) && (!f.Jumps || s.NoClocks == nil) {
			faults = append(faults, f)
		}
	}
	if len(faults) == 0 {
		t.Fatalf("no fault's name contains %q", *only)
	}
	return faults
}

// TestGapsOfABusyMachine: time counts against the service only if the machine had time for it then.
func TestGapsOfABusyMachine(t *testing.T) {
	at := func(seconds ...int) (times []time.Duration) {
		for _, s := range seconds {
			times = append(times, time.Duration(s)*time.Second)
		}
		return times
	}
	p := &probe{served: at(10, 11, 19, 20)}
	away, longest, counts := p.gaps(21*time.Second, at(1, 5, 12, 14, 16))
	if away != 11*time.Second || longest != (gap{from: 11 * time.Second, to: 19 * time.Second}) || counts != (gap{from: 16 * time.Second, to: 19 * time.Second}) {
		t.Errorf("away for %s, longest %v, of which count %v", away, longest, counts)
	}
}
