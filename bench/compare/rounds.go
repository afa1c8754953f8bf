package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fencelock/fencelock/bench/internal/gobench"
)

// comparison is one run of the command.
type comparison struct {
	options
	root, dir  string
	log        io.Writer
	pairs      []pair
	old, fresh gobench.Samples
}

// pair is a package's test program on both sides; base is "" if the package does not exist at the
// base.
type pair struct{ pkg, folder, base, head string }

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		err = fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out, exit.Stderr)
	}
	return string(out), err
}

var benchmark = regexp.MustCompile(`(?m)^func Benchmark`)

// packages lists the folders of the product's module that have benchmarks.
func packages(ctx context.Context, root string) ([]string, error) {
	out, err := output(ctx, root, "go", "list", "-f", "{{.Dir}}", "./...")
	if err != nil {
		return nil, err
	}
	var found []string
	for dir := range strings.Lines(out) {
		dir = strings.TrimSpace(dir)
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(files, hasBenchmark) {
			found = append(found, dir)
		}
	}
	return found, nil
}

func hasBenchmark(file string) bool {
	text, err := os.ReadFile(file)
	return err == nil && benchmark.Match(text)
}

// build compiles the test programs of both sides before the first round, so that no round
// includes compiling.
func (c *comparison) build(ctx context.Context, base string) error {
	dirs, err := packages(ctx, c.root)
	if err != nil {
		return err
	}
	for i, dir := range dirs {
		pkg, err := filepath.Rel(c.root, dir)
		if err != nil {
			return err
		}
		p := pair{pkg: pkg, folder: dir, head: filepath.Join(c.dir, fmt.Sprintf("head-%d.test", i))}
		if _, err := output(ctx, c.root, "go", "test", "-c", "-o", p.head, "./"+pkg); err != nil {
			return err
		}
		p.base = filepath.Join(c.dir, fmt.Sprintf("base-%d.test", i))
		if _, err := output(ctx, base, "go", "test", "-c", "-o", p.base, "./"+pkg); err != nil {
			_, _ = fmt.Fprintf(c.log, "%s cannot be built at the base, left out: %v\n", pkg, err)
			continue
		}
		c.pairs = append(c.pairs, p)
	}
	if len(c.pairs) == 0 {
		return errors.New("no package has benchmarks on both sides")
	}
	return nil
}

// alternate runs base and head in turn, and swaps their order in every second round, so that
// neither side always comes first.
func (c *comparison) alternate(ctx context.Context) error {
	c.old, c.fresh = gobench.Samples{}, gobench.Samples{}
	for round := range c.rounds {
		_, _ = fmt.Fprintf(c.log, "round %d of %d\n", round+1, c.rounds)
		for _, p := range c.pairs {
			sides := []side{{p.base, "base.txt", c.old}, {p.head, "head.txt", c.fresh}}
			if round%2 == 1 {
				slices.Reverse(sides)
			}
			for _, s := range sides {
				if err := c.once(ctx, p, s); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// side is a test program, where its output is kept, and its samples.
type side struct {
	program, file string
	samples       gobench.Samples
}

func (c *comparison) once(ctx context.Context, p pair, s side) (err error) {
	if _, err := os.Stat(s.program); errors.Is(err, os.ErrNotExist) {
		return nil // the package has no tests on this side
	}
	out, err := output(ctx, p.folder, s.program, "-test.run", "^$", "-test.bench", c.bench, "-test.skip", c.skip,
		"-test.benchmem", "-test.benchtime", c.benchtime.String(), "-test.timeout", "10m")
	if err != nil {
		return err
	}
	if err := s.samples.Add(p.pkg, out); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(c.dir, s.file), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	_, err = file.WriteString(out)
	return err
}

// benchstat prints the table that Go developers know.
func (c *comparison) benchstat(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "tool", "benchstat",
		"base="+filepath.Join(c.dir, "base.txt"), "head="+filepath.Join(c.dir, "head.txt"))
	cmd.Dir = filepath.Join(c.root, "bench")
	cmd.Stdout, cmd.Stderr = os.Stdout, c.log
	return cmd.Run()
}
