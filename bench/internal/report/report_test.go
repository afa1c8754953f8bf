package report

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/bench/internal/load"
	"github.com/fencelock/fencelock/bench/internal/result"
	"github.com/fencelock/fencelock/bench/internal/stats"
)

func sample() *result.Set {
	s := &result.Set{Quick: true, Notes: []string{"etcd is\nnot there"}}
	s.Machine.Foreign, s.Machine.Load = 0.3, "1 2 3 4/5 6"
	for round := range 3 {
		for i, peer := range []string{result.HTTP, result.Baseline} {
			for _, v := range []string{"16", "256"} {
				o := load.Outcome{Seconds: 1, Pairs: 1000 * (2 - i), CPU: load.Usage{Load: time.Second, Store: time.Second}}
				o.Pair = stats.Latency{Count: 1, P50: time.Millisecond, P99: time.Second}
				if i == 1 && round == 1 {
					o.Failed, o.Err = 3, "no\nluck"
				}
				s.Add(result.Key{Scenario: result.Uncontended, Variant: v, Peer: peer}, round, o)
			}
		}
	}
	s.Add(result.Key{Scenario: result.Hot, Variant: result.HotVariant(16), Peer: result.HTTP}, 0, load.Outcome{Seconds: 1, Pairs: 9})
	s.Set("a PING over a round trip of 0.5 ms, µs", 612)
	return s
}

func TestMarkdown(t *testing.T) {
	page := Markdown(sample())
	for _, want := range []string{
		"**Noisy run.**", "**Quick run**", "30.0 %", "etcd is not there",
		"| 256 | fencelock-http | 2,000 ±0 % | 2.00 |", "first with: `no luck`",
		"| a PING over a round trip of 0.5 ms, µs | 612 |", "| not measured | starved: share that fails at 64 |",
		"| pass | fencelock-http ÷ redsync, pairs/s at 256 | ≥ 1 | 2.00 |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	columns := 0
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "|") {
			columns = 0
			continue
		}
		if n := strings.Count(line, "|"); columns != 0 && n != columns {
			t.Errorf("%d columns instead of %d: %s", n, columns, line)
		}
		columns = strings.Count(line, "|")
	}
}

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	if err := Write(dir, sample()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{Page, Figures} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The documentation quotes a run only if it has every figure of the table.
func TestDocumentation(t *testing.T) {
	root := t.TempDir()
	page := filepath.Join(root, "docs", "explanation", "benchmarks.md")
	if err := os.MkdirAll(filepath.Dir(page), 0o700); err != nil {
		t.Fatal(err)
	}
	const before, after = "# Speed\n\n" + written + "| old |\n| --- |\n\n", "The end.\n"
	readme := filepath.Join(root, "README.md")
	for _, name := range []string{page, filepath.Join(filepath.Dir(page), "engines.md"), readme} {
		if err := os.WriteFile(name, []byte(before+after), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func() string {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	set := sample()
	if err := Documentation(root, set); err == nil || read() != before+after {
		t.Errorf("%v\n%s", err, read())
	}
	for _, k := range quoted() {
		o := load.Outcome{Seconds: 1, Pairs: 1234, Pair: stats.Latency{Count: 1, P50: 2340 * time.Microsecond}}
		o.Turnover = o.Pair
		set.Add(k, 7, o)
	}
	for range 2 {
		if err := Documentation(root, set); err != nil {
			t.Fatal(err)
		}
		got := read()
		if !strings.Contains(got, "| 4,096 workers | 1,234, 2.3 ms |") || !strings.HasSuffix(got, " | | |\n\n"+after) || strings.Contains(got, "old") {
			t.Errorf("got\n%s", got)
		}
	}
	if text, err := os.ReadFile(readme); err != nil || !strings.Contains(string(text), "| 1 worker, round trips of 0.5 ms | 1.0 times | 1.0 times |\n\n"+after) {
		t.Errorf("%v\n%s", err, text)
	}
}

// quoted is everything that the documentation quotes.
func quoted() (keys []result.Key) {
	for _, workers := range []string{"1", "16", "64", "256"} {
		for _, p := range []string{
			result.HTTP, result.Baseline, result.Redislock, result.PgRow, result.HTTPPostgres,
			result.HTTPEtcd, result.EtcdJSON, result.HTTPZooKeeper, result.ZooKeeper, result.HTTPFile, result.BareFile,
		} {
			keys = append(keys, result.Key{Scenario: result.Uncontended, Variant: workers, Peer: p})
		}
	}
	for _, p := range []string{result.HTTP, result.HTTPPostgres, result.HTTPEtcd, result.HTTPZooKeeper, result.HTTPFile} {
		keys = append(keys, result.Key{Scenario: result.Hot, Variant: result.HotVariant(16), Peer: p})
	}
	for scenario, variant := range map[string]string{result.Connections: "4096", result.Starved: "64", result.Network: "0.5 ms", result.Clients: "64"} {
		for _, p := range []string{result.HTTP, result.Baseline, result.GoClient, result.PythonTasks, result.TypeScript} {
			keys = append(keys, result.Key{Scenario: scenario, Variant: variant, Peer: p})
		}
	}
	return keys
}

func TestEmptyRun(t *testing.T) {
	if err := Write(t.TempDir(), &result.Set{}); err != nil {
		t.Fatal(err)
	}
}

func TestFigure(t *testing.T) {
	for v, want := range map[float64]string{0.4242: "0.42", 12.34: "12.3", 123.4: "123", 1234.5: "1,235", 1_234_567: "1,234,567"} {
		if got := figure(v); got != want {
			t.Errorf("figure(%v) = %q, want %q", v, got, want)
		}
	}
	if figure(math.NaN()) != "–" {
		t.Error("not a number")
	}
}
