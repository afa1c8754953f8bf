package report

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/fencelock/fencelock/bench/internal/result"
)

// written precedes each table in the documentation that a whole run replaces.
const written = "<!-- Written by make bench -->\n"

// Documentation rewrites the tables in the pages that quote the benchmark. If some of a table's
// figures were not measured, it returns an error and leaves that page unchanged.
func Documentation(root string, set *result.Set) error {
	pages := filepath.Join(root, "docs", "explanation")
	return errors.Join(
		replaceTable(filepath.Join(root, "README.md"), costs(set)),
		replaceTable(filepath.Join(pages, "benchmarks.md"), summary(set)),
		replaceTable(filepath.Join(pages, "engines.md"), engines(set)),
	)
}

func replaceTable(path, table string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok1 := strings.Cut(string(raw), written)
	_, after, ok2 := strings.Cut(rest, "\n\n")
	if !ok1 || !ok2 {
		return fmt.Errorf("%s: there is no table after %q", path, strings.TrimSpace(written))
	}
	if strings.Contains(table, figure(math.NaN())) {
		return fmt.Errorf("%s: its table stays as it is, as not all of it was measured", path)
	}
	return writeFile(path, []byte(before+written+table+"\n"+after))
}

// cell returns pairs per second and the median latency of a pair: "6,558 pairs/s, 2.3 ms".
func cell(set *result.Set, k result.Key, unit string) string {
	return figure(set.Of(k, result.Rate).Median) + unit + ", " + millis(set.Of(k, result.PairP50).Median)
}

// millis writes microseconds in milliseconds, with two digits.
func millis(micros float64) string {
	if math.IsNaN(micros) {
		return figure(micros)
	}
	if ms := micros / 1000; ms >= 10 { //nolint:mnd // two digits before the decimal point
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f ms", micros/1000) //nolint:mnd // the unit
}

// costs compares fencelock with redsync, as ratios.
func costs(set *result.Set) string {
	var b strings.Builder
	b.WriteString("| | pairs a second | median time of a pair |\n| --- | --- | --- |\n")
	for _, row := range []struct{ title, scenario, variant string }{
		{"1 worker", result.Uncontended, "1"},
		{"16 workers", result.Uncontended, "16"},
		{"64 workers", result.Uncontended, "64"},
		{"256 workers", result.Uncontended, "256"},
		{"1 worker, round trips of 0.5 ms", result.Network, "0.5 ms"},
	} {
		k := result.Key{Scenario: row.scenario, Variant: row.variant, Peer: result.HTTP}
		redsync := k
		redsync.Peer = result.Baseline
		fmt.Fprintf(&b, "| %s | %s times | %s times |\n", row.title,
			short(set.Ratio(k, redsync, result.Rate).Median), short(set.Ratio(k, redsync, result.PairP50).Median))
	}
	return b.String()
}

// summary is the short table for readers who ask whether fencelock is fast enough.
func summary(set *result.Set) string {
	var b strings.Builder
	b.WriteString("| | fencelock | redsync | one Redis, `SET NX` (redislock) | lease table in Postgres |\n| --- | --- | --- | --- | --- |\n")
	for _, workers := range []string{"1", "16", "64", "256"} {
		fmt.Fprintf(&b, "| %s |", plural(workers))
		for i, peer := range []string{result.HTTP, result.Baseline, result.Redislock, result.PgRow} {
			unit := ""
			if i == 0 && workers == "1" { // the other contenders have the same unit
				unit = " pairs/s"
			}
			fmt.Fprintf(&b, " %s |", cell(set, result.Key{Scenario: result.Uncontended, Variant: workers, Peer: peer}, unit))
		}
		b.WriteString("\n")
	}
	for _, row := range []struct{ title, scenario, variant, peer string }{
		{"4,096 workers", result.Connections, "4096", result.HTTP},
		{"64 workers, processors busy with other work", result.Starved, "64", result.HTTP},
		{"1 worker, round trips of 0.5 ms", result.Network, "0.5 ms", result.HTTP},
		{"64 callers of one Go client", result.Clients, "64", result.GoClient},
		{"64 callers of one asyncio client", result.Clients, "64", result.PythonTasks},
		{"64 callers of one TypeScript client", result.Clients, "64", result.TypeScript},
	} {
		k := result.Key{Scenario: row.scenario, Variant: row.variant, Peer: row.peer}
		redsync := k
		redsync.Peer = result.Baseline
		fmt.Fprintf(&b, "| %s | %s | %s | | |\n", row.title, cell(set, k, ""), cell(set, redsync, ""))
	}
	return b.String()
}

func plural(workers string) string {
	if workers == "1" {
		return "1 worker"
	}
	return workers + " workers"
}

// engines compares each engine with a simple alternative on the same store.
func engines(set *result.Set) string {
	pairs := [][2]string{
		{result.HTTPFile, result.BareFile}, {result.HTTPPostgres, result.PgRow}, {result.HTTPEtcd, result.EtcdJSON},
		{result.HTTPZooKeeper, result.ZooKeeper}, {result.HTTP, result.Baseline},
	}
	var b strings.Builder
	b.WriteString("| workers | embedded file | Postgres | etcd | ZooKeeper | five Redis |\n| ---: | --- | --- | --- | --- | --- |\n")
	for _, workers := range []string{"1", "16", "64", "256"} {
		fmt.Fprintf(&b, "| %s |", workers)
		for _, p := range pairs {
			k := result.Key{Scenario: result.Uncontended, Variant: workers, Peer: p[0]}
			other := k
			other.Peer = p[1]
			fmt.Fprintf(&b, " %s (%s) |", cell(set, k, ""), short(set.Ratio(k, other, result.Rate).Median))
		}
		b.WriteString("\n")
	}
	b.WriteString("| handover |")
	for _, p := range pairs {
		fmt.Fprintf(&b, " %s |", millis(set.Of(result.Key{Scenario: result.Hot, Variant: result.HotVariant(16), Peer: p[0]}, result.TurnoverP50).Median)) //nolint:mnd // as the page says
	}
	return b.String() + "\n"
}
