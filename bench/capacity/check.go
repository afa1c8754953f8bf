package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/fencelock/fencelock/internal/scale"
)

// trial is one comparison.
type trial struct {
	servers, sets, callers int
	trip                   time.Duration // to each node; 0 for none but the machine's own
	rounds                 []round
}

// trials are all comparisons, those of a fleet together.
func trials() (all [][]*trial) {
	for _, sets := range []int{1, 2, 4} {
		for _, servers := range []int{1, 2, 4} {
			var fleet []*trial
			for _, callers := range []int{16, 64, 256} {
				fleet = append(fleet, &trial{servers: servers, sets: sets, callers: callers})
			}
			all = append(all, fleet)
		}
	}
	for _, trip := range []time.Duration{10 * time.Millisecond, 40 * time.Millisecond} {
		var fleet []*trial
		for _, callers := range []int{16, 64, 512} {
			fleet = append(fleet, &trial{servers: 1, sets: 1, callers: callers, trip: trip})
		}
		all = append(all, fleet)
	}
	return all
}

// predict is the model's answer: everything on this machine.
func (t *trial) predict(c scale.Costs) scale.Prediction {
	c.LocalTrip += t.trip
	return scale.Closed(scale.Deployment{
		Servers: t.servers, Sets: t.sets, Nodes: perSet, Shared: processors(),
		Trips: []time.Duration{t.trip}, NodeTimeout: max(50*time.Millisecond, 10*t.trip), TTL: ttl,
	}, c, t.callers)
}

// try measures the trials of a fleet once.
func (s *stage) try(ctx context.Context, trials []*trial, again int) error {
	first := trials[0]
	f, err := s.start(ctx, first.servers, first.sets, perSet, first.trip)
	if err != nil {
		return err
	}
	defer f.scope.Close()
	for _, t := range trials {
		length := measure
		if t.trip > 0 {
			length = slow
		}
		r, err := f.run(ctx, t.callers, length, fmt.Sprintf("check/%d/%d", again, t.callers))
		if err != nil {
			return err
		}
		sayf("check, round %d: %d servers, %d sets, trip %s, %s", again+1, t.servers, t.sets, t.trip, r)
		if r.failed > 0 {
			sayf("  %d callers: %d requests failed: %s", t.callers, r.failed, r.err)
		}
		t.rounds = append(t.rounds, r)
	}
	return nil
}

// best is the fastest round: other programs only take away.
func best(rounds []round) round {
	return slices.MaxFunc(rounds, func(a, b round) int { return cmp.Compare(a.rate, b.rate) })
}

// report prints the table, and how far off the predictions are.
func report(all []*trial, c scale.Costs) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "servers\tsets\ttrip\tcallers\tpairs/s\tpredicted\terror\tp99 ms\tpredicted\terror\tbatch\tpredicted\tothers took\t")
	var rate, p99 []float64
	for _, t := range all {
		got := best(t.rounds)
		p := t.predict(c)
		off, late := p.Pairs/got.rate-1, p.P99/got.p99-1
		rate, p99 = append(rate, off), append(p99, late)
		_, _ = fmt.Fprintf(w, "%d\t%d\t%s\t%d\t%.0f\t%.0f\t%+.0f%%\t%.1f\t%.1f\t%+.0f%%\t%.1f\t%.1f\t%.0f%%\t\n", t.servers, t.sets, t.trip, t.callers,
			got.rate, p.Pairs, 100*off, 1000*got.p99, 1000*p.P99, 100*late, got.batch(), p.Batch, 100*got.foreign)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("\nerror of pairs/s: %s; of p99: %s\n", spread(rate), spread(p99))
	return nil
}

func middle(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// spread says how large errors are.
func spread(errors []float64) string {
	sizes := make([]float64, len(errors))
	for i, e := range errors {
		sizes[i] = math.Abs(e)
	}
	worst := slices.MaxFunc(errors, func(a, b float64) int { return cmp.Compare(math.Abs(a), math.Abs(b)) })
	return fmt.Sprintf("%.0f %% in the median, %+.0f %% at worst", 100*middle(sizes), 100*worst)
}
