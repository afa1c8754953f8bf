package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/chaos"
	"github.com/fencelock/fencelock/internal/testenv"
)

// quicker is how many times shorter the rules' durations are in the test: a minute is a
// second. Thresholds are as they are shipped.
const quicker = 60

// monitor is a real Prometheus that scrapes servers and evaluates the rules.
type monitor struct {
	t     *testing.T
	url   string
	all   []string
	fired map[string]bool
}

func quickRules(t *testing.T) string {
	t.Helper()
	return regexp.MustCompile(`(for: |\[)(\d+[smh])\b`).ReplaceAllStringFunc(string(deployFile(t, "prometheus/fencelock.rules.yaml")), func(text string) string {
		at := strings.LastIndexAny(text, " [") + 1
		d, err := time.ParseDuration(text[at:])
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s%dms", text[:at], (d / quicker).Milliseconds())
	})
}

func startMonitor(t *testing.T, servers ...*process) *monitor {
	t.Helper()
	var targets []string
	for _, p := range servers {
		targets = append(targets, fmt.Sprintf("%q", p.admin))
	}
	config := fmt.Sprintf(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 250ms}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: fencelock
    static_configs: [{targets: [%s]}]`, strings.Join(targets, ", "))
	rules := quickRules(t)
	m := &monitor{t: t, url: testenv.StartPrometheus(t, config, rules).URL(), fired: map[string]bool{}}
	for _, found := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(rules, -1) {
		m.all = append(m.all, found[1])
	}
	return m
}

// firing returns the alerts that fire now.
func (m *monitor) firing() (names []string, err error) {
	resp, err := http.Get(m.url + "/api/v1/alerts") //nolint:noctx // a test
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			Alerts []struct {
				Labels map[string]string `json:"labels"`
				State  string            `json:"state"`
			} `json:"alerts"`
		} `json:"data"`
	}
	if err := readJSON(resp, &answer); err != nil {
		return nil, err
	}
	for _, alert := range answer.Data.Alerts {
		if alert.State == "firing" {
			names = append(names, alert.Labels["alertname"])
		}
	}
	return names, nil
}

// quiet waits until no alert fires, after every server was scraped.
func (m *monitor) quiet(servers int) {
	m.t.Helper()
	testenv.Eventually(m.t, 20*time.Second, func() error {
		resp, err := http.Get(m.url + `/api/v1/query?query=` + `count(count_over_time(fencelock_build_info[3s])>3)`) //nolint:noctx // a test
		if err != nil {
			return err
		}
		var answer struct {
			Data struct {
				Result []struct {
					Value [2]any `json:"value"`
				} `json:"result"`
			} `json:"data"`
		}
		if err := readJSON(resp, &answer); err != nil {
			return err
		}
		if found := answer.Data.Result; len(found) == 0 || found[0].Value[1] != fmt.Sprint(servers) {
			return fmt.Errorf("scraped: %v, want %d servers", found, servers)
		}
		names, err := m.firing()
		if err == nil && len(names) > 0 {
			err = fmt.Errorf("%q fire where nothing is wrong", names)
		}
		return err
	})
}

// await waits until each of the alerts has fired.
func (m *monitor) await(alerts ...string) {
	m.t.Helper()
	began := time.Now()
	testenv.Eventually(m.t, 90*time.Second, func() error {
		names, err := m.firing()
		for _, name := range names {
			if !m.fired[name] {
				m.t.Logf("%s fires after %s", name, time.Since(began).Round(100*time.Millisecond))
			}
			m.fired[name] = true
		}
		missing := slices.DeleteFunc(slices.Clone(alerts), func(name string) bool { return m.fired[name] })
		if err == nil && len(missing) > 0 {
			err = fmt.Errorf("%q do not fire", missing)
		}
		return err
	})
}

// crowdOf repeats calls from several goroutines until it is stopped.
func crowdOf(t *testing.T, callers int, call func(ctx context.Context, i int)) (end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	for i := range callers {
		done.Go(func() {
			for ctx.Err() == nil {
				call(ctx, i)
			}
		})
	}
	end = func() { stop(); done.Wait() }
	t.Cleanup(end)
	return end
}

// TestSoakAlertsFire causes, on real servers and nodes, each problem that an alert watches for. A real Prometheus
// evaluates the shipped rules.
func TestSoakAlertsFire(t *testing.T) {
	testenv.Soak(t, "an alert that does not fire in a real Prometheus")
	dir := t.TempDir()
	library, err := chaos.BuildShim(dir)
	if err != nil {
		t.Fatal(err)
	}
	var nodes []*testenv.Redis
	var clocks []*chaos.Clock
	for i := range 3 {
		clock, option := chaos.NewClock(t, dir, library, i)
		clocks = append(clocks, clock)
		nodes = append(nodes, testenv.StartRedis(t, option))
	}
	database := testenv.StartPostgres(t)
	keys := filepath.Join(dir, "keys")
	writeFile(t, keys, "k1 "+strings.Repeat("a1", 32)+"\n")
	single := startLimited(t, 256, "FENCELOCK_DATA="+filepath.Join(dir, "data"), "FENCELOCK_DATABASE_URL="+database.OwnerURL(),
		"FENCELOCK_LEASE_KEY_FILE="+keys, "FENCELOCK_MAX_WAITERS=20", "FENCELOCK_MAX_RECORDS=1", "FENCELOCK_NODE_TIMEOUT=1s")
	settings := []string{redisAddrs(nodes), "FENCELOCK_NODE_TIMEOUT=3s", "FENCELOCK_NODE_DOWN_AFTER=3s", fmt.Sprint("FENCELOCK_ADMIN_LISTEN=127.0.0.1:", testenv.FreePort(t))}
	quorum := start(t, append(settings, "FENCELOCK_BOOTSTRAP=new")...)
	m := startMonitor(t, single, quorum)
	m.quiet(2)
	m.callers(single)
	m.guard(single, database, keys)
	if err := nodes[2].Client().Set(t.Context(), "l:of another program", "1 x  1000 ", 0).Err(); err != nil {
		t.Fatal(err)
	}
	quorum.Kill()
	quorum = start(t, settings...) // looks for such locks in its first minute, and every ten
	m.nodes(quorum, nodes, clocks)
	m.invariants(quorum, nodes)
	m.lostQuorum(quorum, nodes)
	single.Kill()
	m.await("FencelockDown")
	quorum.Kill()
	m.await("FencelockNoServer")
	for _, name := range m.all {
		if !m.fired[name] {
			t.Errorf("%s was not made to fire", name)
		}
	}
	t.Logf("%d of %d alerts fired: %q", len(m.fired), len(m.all), slices.Sorted(maps.Keys(m.fired)))
}

// callers causes the alerts about callers: leases that nobody releases, and waits that are long and many.
func (m *monitor) callers(p *process) {
	m.t.Helper()
	for i := range 8 {
		p.acquire(fmt.Sprintf(`{"resource":"lost/%d","ttl_ms":100}`, i))
	}
	m.await("FencelockLeasesLost")
	p.acquire(`{"resource":"full","ttl_ms":60000}`)
	endFull := crowdOf(m.t, 14, func(ctx context.Context, _ int) {
		_, _ = p.try(ctx, nil, "POST", "/locks", `{"resource":"full","wait_ms":60000}`)
	})
	endSlow := crowdOf(m.t, 4, func(ctx context.Context, _ int) {
		_, _ = p.try(ctx, nil, "POST", "/locks", `{"resource":"slow","ttl_ms":1500,"wait_ms":60000}`) // ends by its TTL
	})
	m.await("FencelockWaitersNearLimit", "FencelockWaitP99")
	endFull()
	endSlow()
	idleConnections(m.t, strings.TrimPrefix(p.url, "http://"), 180)
	m.await("FencelockConnectionsNearLimit")
}

// guard causes the alerts about the guard: a stale holder, a database that is down, a file that cannot be used.
func (m *monitor) guard(p *process, database *testenv.PG, keys string) {
	m.t.Helper()
	write := func(token int64, status int) {
		p.wants(p.ask(nil, "PUT", "/guarded/a", `{"n":1}`, fmt.Sprint("Fencing-Token: ", token)), status)
	}
	write(34, http.StatusOK)
	write(33, http.StatusPreconditionFailed)
	m.await("FencelockStaleWritesRefused", "FencelockRecordsNearLimit")
	database.Kill()
	writeFile(m.t, keys, "not a key\n")
	m.await("FencelockGuardDown", "FencelockFileRefused")
}

func pair(p *process) func(ctx context.Context, i int) {
	return func(ctx context.Context, i int) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		var lease struct {
			ID string `json:"lease_id"`
		}
		resp, err := p.try(ctx, &lease, "POST", "/locks", fmt.Sprintf(`{"resource":"load/%d"}`, i))
		if err == nil && resp.StatusCode == http.StatusCreated {
			_, _ = p.try(ctx, nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.ID)
		}
	}
}

// nodes causes the alerts about nodes: one is slow and another nearly full; then one freezes, one is reconfigured,
// and the clock of one jumps.
func (m *monitor) nodes(p *process, nodes []*testenv.Redis, clocks []*chaos.Clock) {
	m.t.Helper()
	end := crowdOf(m.t, 8, pair(p))
	slow := nodes[0].Client()
	endPauses := crowdOf(m.t, 1, func(ctx context.Context, _ int) {
		slow.Do(ctx, "CLIENT", "PAUSE", 120, "ALL")
		slow.Ping(ctx) // others have their turn: without it the next pause is the first thing that the node does, and it is down
	})
	configure := func(i int, name, value string) {
		if err := nodes[i].Client().ConfigSet(m.t.Context(), name, value).Err(); err != nil {
			m.t.Fatal(err)
		}
	}
	configure(2, "maxmemory", "1mb") // it uses as much when it is empty
	m.await("FencelockNodeSlow", "FencelockNodeMemoryNearLimit")
	endPauses()
	end()
	configure(2, "maxmemory", "0")

	end = crowdOf(m.t, 32, pair(p))
	nodes[0].Freeze()
	m.await("FencelockNodeQueueNearLimit")
	nodes[0].Thaw()
	end()

	configure(0, "maxmemory-policy", "allkeys-lru")
	m.await("FencelockNodeRefused")
	configure(0, "maxmemory-policy", "noeviction")

	if err := clocks[1].Jump(10 * time.Second); err != nil {
		m.t.Fatal(err)
	}
	m.await("FencelockClockJumped", "FencelockNodeQuarantined", "FencelockNoSpareNode", "FencelockLeakedLocks")
}

// invariants sets the data of the two nodes that vote back by hand.
func (m *monitor) invariants(p *process, nodes []*testenv.Redis) {
	m.t.Helper()
	p.release(p.acquire(`{"resource":"set back"}`))
	for _, n := range []*testenv.Redis{nodes[0], nodes[2]} { // the clock of the other has jumped
		setBack(m.t, n, "set back")
	}
	p.acquire(`{"resource":"set back","ttl_ms":1000}`)
	m.await("FencelockInvariantBroken")
}

// lostQuorum stops two of three nodes.
func (m *monitor) lostQuorum(p *process, nodes []*testenv.Redis) {
	m.t.Helper()
	crowdOf(m.t, 4, pair(p))
	nodes[0].Kill()
	nodes[2].Kill()
	crowdOf(m.t, 4, func(ctx context.Context, _ int) {
		_, _ = p.try(ctx, nil, "POST", "/locks", `{"resource":"waited for","wait_ms":60000}`)
	})
	m.await("FencelockNodeDown", "FencelockNoQuorum", "FencelockAcquiresWithoutQuorum", "FencelockWaitersWithoutQuorum", "FencelockServerErrors")
}
