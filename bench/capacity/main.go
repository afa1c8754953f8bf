// Command capacity measures the costs that package internal/scale predicts from, on this
// machine, and compares its predictions with real processes: 1, 2 and 4 node sets of
// three Redis, and 1, 2 and 4 servers under closed loads over HTTP. Everything shares the
// processors of one machine, and the predictions know it. Run it by 'make capacity-check'.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/bench/internal/stand"
	"github.com/fencelock/fencelock/internal/scale"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "capacity:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("capacity", flag.ContinueOnError)
	out := flags.String("out", "", "a file for the costs, which 'make capacity' takes as -costs")
	rounds := flags.Int("rounds", 3, "rounds of measurements, which take about a minute each")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s, err := newStage(ctx)
	if err != nil {
		return err
	}
	defer s.scope.Close()
	return stand.Guard(func() error {
		costs, all, err := s.measure(ctx, *rounds)
		if err != nil {
			return err
		}
		if err := write(*out, costs); err != nil {
			return err
		}
		return report(all, costs)
	})
}

// measure measures the costs and what to compare with them. The rounds of both take
// turns, so that a change of the machine's speed is in both. Of each the
// fastest round counts.
func (s *stage) measure(ctx context.Context, rounds int) (costs scale.Costs, all []*trial, err error) {
	if costs, err = s.others(ctx); err != nil {
		return costs, nil, err
	}
	fleets := trials()
	pairs := make(map[[2]int][]round) // by nodes and callers
	for again := range rounds {
		measured, err := s.pairs(ctx, again)
		if err != nil {
			return costs, nil, err
		}
		for _, r := range measured {
			pairs[[2]int{r.nodes, r.workers}] = append(pairs[[2]int{r.nodes, r.workers}], r)
		}
		for _, fleet := range fleets {
			if err := s.try(ctx, fleet, again); err != nil {
				return costs, nil, err
			}
		}
	}
	var fastest []round
	for _, rounds := range pairs {
		fastest = append(fastest, best(rounds))
	}
	costsOf(fastest, &costs)
	return costs, slices.Concat(fleets...), nil
}

func write(path string, costs scale.Costs) error {
	raw, err := json.MarshalIndent(costs, "", "  ")
	if err != nil {
		return err
	}
	fmt.Printf("costs (times in nanoseconds):\n%s\n\n", raw)
	if path == "" {
		return nil
	}
	return os.WriteFile(path, raw, 0o600)
}

// moduleRoot is the folder of the product that is measured.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/fencelock/fencelock").Output()
	if err != nil {
		return "", fmt.Errorf("run this in the bench folder (or by make capacity-check): %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
