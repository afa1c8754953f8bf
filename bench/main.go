// Command bench compares fencelock with other ways to lock, on this machine. It starts all
// servers, measures in interleaved rounds, and writes a page with tables. See
// bench/README.md. Linux only.
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
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/bench/internal/barehttp"
	"github.com/fencelock/fencelock/bench/internal/delay"
	"github.com/fencelock/fencelock/bench/internal/report"
	"github.com/fencelock/fencelock/bench/internal/result"
	"github.com/fencelock/fencelock/bench/internal/suite"
)

func main() { os.Exit(status(os.Args[1:])) }

func status(args []string) int {
	// The first signal ends the run in order, a second one kills it.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	do := func() error { return run(ctx, args) }
	if len(args) == 1 && args[0] == barehttp.Command {
		do = func() error { return barehttp.Serve(ctx) }
	}
	if len(args) > 0 && args[0] == delay.Command {
		do = func() error { return delay.Serve(ctx, os.Stdout, args[1:]) }
	}
	if err := do(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// options are the command line's flags.
type options struct {
	suite.Options
	out, json, from string
	strict          bool
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.BoolVar(&o.Quick, "quick", false, "fewer and shorter rounds: under two minutes")
	flags.IntVar(&o.Rounds, "rounds", 0, "rounds of each measurement (5; 2 with -quick)")
	only := flags.String("only", "", "sections to run, separated by commas: "+strings.Join(suite.Sections(), ","))
	with := flags.String("with", "", "contenders to measure, separated by commas, as the page names them; all if empty")
	levels := flags.String("workers", "", "numbers of workers, separated by commas, instead of 1,16,64,256")
	flags.DurationVar(&o.Budget, "budget", 0, "after this, what is not begun is left out (14m; 110s with -quick)")
	flags.StringVar(&o.Beside, "beside", "", "another build of fencelock, measured beside this tree's in the section uncontended")
	flags.StringVar(&o.out, "out", "", "folder of the page (bench/results)")
	flags.StringVar(&o.json, "json", "", "file for every round's raw figures")
	flags.StringVar(&o.from, "from", "", "measure nothing, write the page of such a file")
	flags.BoolVar(&o.strict, "strict", false, "fail if a figure that must hold does not")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("what is %q?", flags.Arg(0))
	}
	if o.Budget == 0 {
		o.Budget = defaultBudget(o.Options)
	}
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	if *with != "" {
		o.With = strings.Split(*with, ",")
	}
	if o.Levels, err = numbers(*levels); err != nil {
		return o, err
	}
	return o, checkSections(o.Only)
}

// numbers reads a list of numbers of workers.
func numbers(list string) (levels []int, err error) {
	for _, word := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > 10_000 {
			return nil, fmt.Errorf("-workers takes numbers from 1 to 10000 with commas between, not %q", word)
		}
		levels = append(levels, n)
	}
	return levels, nil
}

// defaultBudget is the time after which no new step begins. It bounds a run on a slow machine.
func defaultBudget(o suite.Options) time.Duration {
	if o.Quick {
		return 110 * time.Second
	}
	return 14 * time.Minute // a step that begins before then still ends within a quarter of an hour
}

func checkSections(names []string) error {
	known := strings.Join(suite.Sections(), ",")
	for _, n := range names {
		if !strings.Contains(","+known+",", ","+n+",") {
			return fmt.Errorf("there is no section %q; there are %s", n, known)
		}
	}
	return nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if o.Root, err = moduleRoot(ctx); err != nil {
		return err
	}
	if o.out == "" {
		o.out = filepath.Join(o.Root, "bench", "results")
	}
	o.Log = os.Stderr
	if os.Getenv("TMPDIR") == "" {
		if err := os.Setenv("TMPDIR", os.TempDir()); err != nil { // servers that sync do so to a disk, unlike those of tests
			return err
		}
	}
	set, err := o.measure(ctx)
	if err != nil {
		return err
	}
	before, err := result.ReadFigures(filepath.Join(o.Root, "bench", "results", report.Figures))
	if err != nil {
		return err
	}
	why := set.Compare(before)
	if err := o.write(set); err != nil {
		return err
	}
	if why != "" {
		fmt.Println("not compared with the committed figures:", why)
	}
	return o.judge(set)
}

// whole reports whether the documentation may quote this run: everything was measured, in full,
// into the usual folder.
func (o options) whole() bool {
	return !o.Quick && len(o.Only)+len(o.With)+len(o.Levels) == 0 && o.out == filepath.Join(o.Root, "bench", "results")
}

// measure runs the benchmark, or reads the results of an earlier run.
func (o options) measure(ctx context.Context) (*result.Set, error) {
	if o.from == "" {
		return suite.New(o.Options).Run(ctx)
	}
	raw, err := os.ReadFile(o.from)
	if err != nil {
		return nil, err
	}
	set := &result.Set{}
	return set, json.Unmarshal(raw, set) //nolint:musttag // what write has written
}

// moduleRoot returns the folder of the module that is measured.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/fencelock/fencelock").Output()
	if err != nil {
		return "", fmt.Errorf("run this in the bench folder (or by make bench): %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (o options) write(set *result.Set) error {
	if err := report.Write(o.out, set); err != nil {
		return err
	}
	fmt.Println("written to", filepath.Join(o.out, report.Page))
	if o.whole() {
		if err := report.Documentation(o.Root, set); err != nil {
			fmt.Println("documentation:", err)
		}
	}
	if o.json == "" {
		return nil
	}
	raw, err := json.MarshalIndent(set, "", " ") //nolint:musttag // only read back by this program's -from
	if err != nil {
		return err
	}
	return os.WriteFile(o.json, raw, 0o600) //nolint:gosec // a file that the caller names
}

// judge prints every check. It fails if a figure fell since the committed run.
func (o options) judge(set *result.Set) error {
	missed, fell := 0, 0
	for _, c := range set.Checks() {
		if c.Verdict == result.Unknown {
			continue
		}
		fmt.Printf("%-5s %-74s %8.2f  (%s) %s\n", c.Verdict, c.Text, c.Got, c.Want, c.Remark)
		if c.Fell {
			fmt.Printf("FELL  from %.2f in the committed run\n", c.Was)
			fell++
		}
		if c.Verdict == result.Miss {
			missed++
		}
	}
	if share := set.Machine.Foreign; share > result.Noisy {
		fmt.Printf("noisy: other programs took %.0f %% of the processors\n", 100*share)
	}
	if fell > 0 {
		return fmt.Errorf("%d figures fell by more than %g %%; measure them again with -only and -with before you conclude", fell, 100*result.Fall)
	}
	if o.strict && missed > 0 {
		return fmt.Errorf("%d figures that must hold do not", missed)
	}
	return nil
}
