package main

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// families returns the metrics of a scrape that belong to fencelock, with their types.
func families(scrape string) map[string]string {
	found := make(map[string]string)
	for line := range strings.Lines(scrape) {
		if rest, ok := strings.CutPrefix(line, "# TYPE fencelock_"); ok {
			name, kind, _ := strings.Cut(strings.TrimSpace(rest), " ")
			found["fencelock_"+name] = kind
		}
	}
	return found
}

// documentedMetrics are the rows of docs/reference/metrics.md.
func documentedMetrics(t *testing.T) map[string]string {
	t.Helper()
	file, err := os.Open("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	row := regexp.MustCompile("^\\| `(fencelock_[a-z_]+)` \\| (counter|gauge|histogram) \\|")
	found := make(map[string]string)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if m := row.FindStringSubmatch(lines.Text()); m != nil {
			found[m[1]] = m[2]
		}
	}
	return found
}

// busyService is a service on real Redis that has done everything that its metrics count.
func busyService(t *testing.T, env ...string) (p *process, secrets []string) {
	t.Helper()
	servers := testenv.StartRedisN(t, 3)
	p = start(t, append([]string{
		"FENCELOCK_REDIS_ADDRS=" + servers[0].Addr() + "," + servers[1].Addr() + "," + servers[2].Addr(),
		"FENCELOCK_BOOTSTRAP=new", "FENCELOCK_DATA=guard.db", "FENCELOCK_LOG_LEVEL=debug", "FENCELOCK_NODE_DOWN_AFTER=1s",
	}, env...)...)
	var lease wire.Lease
	p.ask(&lease, "POST", "/locks", `{"resource":"orders/secret-42","holder":"holder-7","ttl_ms":30000}`, "Idempotency-Key: key-of-mine")
	p.ask(nil, "POST", "/locks", `{"resource":"orders/secret-42","wait_ms":20}`)
	p.ask(&lease, "POST", "/leases/current/extend", "", "Fencelock-Lease: "+lease.LeaseID)
	p.ask(nil, "PUT", "/guarded/orders/secret-42", `{"balance":1}`, fmt.Sprintf("Fencing-Token: %d", lease.FencingToken))
	p.ask(nil, "PUT", "/guarded/orders/secret-42", `{"balance":2}`, "Fencing-Token: 1")
	p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID)
	p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID)
	var brief wire.Lease
	p.ask(&brief, "POST", "/locks", `{"resource":"brief/secret-43","ttl_ms":1000}`)
	return p, []string{"secret-42", "secret-43", "holder-7", "key-of-mine", lease.LeaseID, brief.LeaseID}
}

func TestMetricsAreThoseOfTheirPage(t *testing.T) {
	t.Parallel()
	p, secrets := busyService(t)
	p.until("a lease has run out", func() bool {
		return strings.Contains(p.scrape(), `fencelock_leases_lost_total{found="expiry"} 1`)
	})
	documented := documentedMetrics(t)
	// A search for leaked locks begins within a minute; the gauge comes with its end.
	delete(documented, "fencelock_node_leaked_locks")
	text := p.scrape()
	told := families(text)
	delete(told, "fencelock_node_leaked_locks")
	for name, kind := range told {
		if documented[name] != kind {
			t.Errorf("%s is a %s: docs/reference/metrics.md says %q", name, kind, documented[name])
		}
	}
	for name := range documented {
		if told[name] == "" {
			t.Errorf("docs/reference/metrics.md has %s: the service has not", name)
		}
	}
	for _, line := range []string{
		`fencelock_acquisitions_total{outcome="granted",prefix=""} 2`,
		`fencelock_acquisitions_total{outcome="wait_timeout",prefix=""} 1`,
		`fencelock_wait_seconds_count{prefix=""} 3`,
		`fencelock_hold_seconds_count{prefix=""} 1`,
		`fencelock_extensions_total{outcome="granted"} 1`,
		`fencelock_releases_total{outcome="not_held"} 1`,
		`fencelock_stale_writes_refused_total{operation="write"} 1`,
		`fencelock_ready{set="1"} 1`,
		`fencelock_nodes_quorum{set="1"} 2`,
		`fencelock_waiters_limit{set="1"} 10000`,
		`fencelock_leases_held 0`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no %s", line)
		}
	}
	noSecrets(t, "the metrics", text, secrets)
	noSecrets(t, "the log", p.Logs(), secrets[2:]) // what is broken is named in the log
}

func noSecrets(t *testing.T, where, text string, secrets []string) {
	t.Helper()
	for _, secret := range secrets {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("%s: %q is in …%s…", where, secret, text[max(0, i-80):min(len(text), i+80)])
		}
	}
}

// The labels' values stay the same whatever resources come: no name from a client becomes a label.
func TestSeriesDoNotGrowWithResources(t *testing.T) {
	t.Parallel()
	p := start(t, "FENCELOCK_METRICS_PREFIXES=orders/,carts/")
	call := func(i int) {
		var lease wire.Lease
		p.ask(&lease, "POST", "/locks", fmt.Sprintf(`{"resource":"orders/%d","holder":"h%d"}`, i, i))
		p.ask(nil, "GET", fmt.Sprintf("/locks/orders/%d", i), "")
		p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID)
	}
	call(0)
	names := func() (series []string) {
		for line := range strings.Lines(p.scrape()) {
			if name, _, ok := strings.Cut(line, " "); ok && strings.HasPrefix(name, "fencelock_") {
				series = append(series, name)
			}
		}
		slices.Sort(series)
		return series
	}
	p.until("the first requests are counted", func() bool {
		return strings.Contains(p.scrape(), `fencelock_http_requests_total{code="204",method="DELETE",route="/leases/current"} 1`)
	})
	before := names()
	for i := 1; i < 50; i++ {
		call(i)
	}
	if after := names(); !slices.Equal(before, after) {
		t.Errorf("%d series, then %d", len(before), len(after))
	}
	if !strings.Contains(p.scrape(), `fencelock_acquisitions_total{outcome="granted",prefix="orders/"} 50`) {
		t.Error("the prefix is not counted")
	}
}
