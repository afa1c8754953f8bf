// Command compare runs the module's Go benchmarks at the merge base and in the working tree, in
// alternation, and compares the two by ratio. Whatever affects both sides, above all a busy
// machine, cancels out. It never compares absolute times with those of another day.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/bench/internal/gobench"
)

func main() { os.Exit(status(os.Args[1:])) }

func status(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, args); err != nil {
		fmt.Fprintln(os.Stderr, "bench-compare:", err)
		return 1
	}
	return 0
}

type options struct {
	base, onto  string
	bench, skip string
	rounds      int
	benchtime   time.Duration
	threshold   float64
	strict      bool
}

const minRounds = 5

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	flags.StringVar(&o.base, "base", "", "commit to compare with (the merge base with -onto, or HEAD~1 if that is HEAD)")
	flags.StringVar(&o.onto, "onto", "main", "branch that the merge base is taken with")
	flags.StringVar(&o.bench, "bench", ".", "benchmarks to run, a regular expression")
	flags.StringVar(&o.skip, "skip", "BenchmarkPair|BenchmarkWrite", "benchmarks to leave out: by default those of whole servers and disks, which `make bench` measures")
	flags.IntVar(&o.rounds, "rounds", 8, "how often each side runs")
	flags.DurationVar(&o.benchtime, "benchtime", 200*time.Millisecond, "time of one benchmark in one round")
	flags.Float64Var(&o.threshold, "threshold", 1.10, "ratio of medians from which on it counts")
	flags.BoolVar(&o.strict, "strict", false, "fail if anything became worse")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.rounds < minRounds {
		return o, fmt.Errorf("-rounds %d: fewer than %d rounds cannot tell a change from chance", o.rounds, minRounds)
	}
	return o, nil
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	root, err := git(ctx, ".", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "fencelock-compare-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := &comparison{options: o, root: root, dir: dir, log: os.Stderr}
	return c.run(ctx)
}

func (c *comparison) run(ctx context.Context) (err error) {
	base, err := c.mergeBase(ctx)
	if err != nil {
		return err
	}
	tree := filepath.Join(c.dir, "base")
	if _, err := git(ctx, c.root, "worktree", "add", "--detach", "--quiet", tree, base); err != nil {
		return err
	}
	defer func() {
		_, remove := git(context.WithoutCancel(ctx), c.root, "worktree", "remove", "--force", tree)
		err = errors.Join(err, remove)
	}()
	_, _ = fmt.Fprintf(c.log, "comparing the working tree with %.10s\n", base)
	if err := c.build(ctx, tree); err != nil {
		return err
	}
	if err := c.alternate(ctx); err != nil {
		return err
	}
	return c.judge(ctx)
}

// mergeBase returns the commit to compare with.
func (c *comparison) mergeBase(ctx context.Context) (string, error) {
	if c.base != "" {
		return git(ctx, c.root, "rev-parse", "--verify", c.base+"^{commit}")
	}
	head, err := git(ctx, c.root, "rev-parse", "HEAD")
	if err != nil {
		return "", err
	}
	base, err := git(ctx, c.root, "merge-base", "HEAD", c.onto)
	if err != nil || base == head {
		return git(ctx, c.root, "rev-parse", "HEAD~1")
	}
	return base, nil
}

// judge prints benchstat's table and the verdict.
func (c *comparison) judge(ctx context.Context) error {
	if err := c.benchstat(ctx); err != nil {
		_, _ = fmt.Fprintln(c.log, "benchstat could not be run:", err)
	}
	changes := gobench.Compare(c.old, c.fresh, c.threshold)
	worse := 0
	for _, ch := range changes {
		fmt.Println(ch)
		if ch.Worse() {
			worse++
		}
	}
	switch {
	case worse > 0:
		fmt.Printf("verdict: %d worse by a ratio of %.2f or more\n", worse, c.threshold)
	case len(changes) == 0:
		fmt.Printf("verdict: nothing changed by a ratio of %.2f or more\n", c.threshold)
	default:
		fmt.Println("verdict: better, nothing worse")
	}
	if c.strict && worse > 0 {
		return fmt.Errorf("%d benchmarks became worse", worse)
	}
	return nil
}

// git runs one command of git and returns what it prints.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := output(ctx, dir, "git", args...)
	return strings.TrimSpace(out), err
}
