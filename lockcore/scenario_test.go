package lockcore

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write what the scenarios now give into testdata")

// scenario is a file of testdata: blocks of commands, each followed by ---- and
// by what the commands print. Lines that begin with # are for the reader.
//
//	# two nodes have seen more leases than the third
//	acquire n=3
//	grant 1 5
//	grant 2 3
//	----
//	pending token=5 counts=1 confirm=2
type scenario struct {
	commands []string // comments and blank lines among them
	want     string
	line     int
}

const scenarioMark = "----"

// runScenarios runs every block of the files that match, and compares. run
// executes one command and returns what it prints; settle, which may be nil,
// prints what stands at the end of a block.
func runScenarios(t *testing.T, pattern string, start func(t *testing.T) scenarioRunner) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios match %s: %v", pattern, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) { runScenarioFile(t, file, start(t)) })
	}
}

// scenarioRunner gives commands a meaning.
type scenarioRunner interface {
	do(cmd command) (printed string, err error)
	show() string // what stands after a block
}

func runScenarioFile(t *testing.T, file string, r scenarioRunner) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, s := range parseScenarios(string(text)) {
		got := runScenario(t, file, s, r)
		if got != s.want && !*rewrite {
			t.Errorf("%s:%d:\n%s\ngot:\n%swant:\n%s", file, s.line, strings.Join(s.commands, "\n"), got, s.want)
		}
		fmt.Fprintf(&out, "%s\n%s\n%s\n", strings.Join(s.commands, "\n"), scenarioMark, got)
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(strings.TrimRight(out.String(), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func runScenario(t *testing.T, file string, s scenario, r scenarioRunner) string {
	t.Helper()
	var got strings.Builder
	for k, line := range s.commands {
		cmd, ok := parseCommand(line)
		if !ok {
			continue
		}
		printed, err := r.do(cmd)
		if err != nil {
			t.Fatalf("%s:%d: %s: %v", file, s.line+k, line, err)
		}
		got.WriteString(printed)
	}
	got.WriteString(r.show())
	return got.String()
}

// parseScenarios cuts a file at its marks; the result of a block ends at the
// first empty line.
func parseScenarios(text string) (all []scenario) {
	s := scenario{line: 1}
	results := false
	for number, line := range strings.Split(strings.TrimRight(text, "\n")+"\n\n", "\n") {
		switch {
		case results && line == "":
			all = append(all, s)
			s, results = scenario{line: number + 2}, false
		case results:
			s.want += line + "\n"
		case line == scenarioMark:
			results = true
		case line != "" || len(s.commands) > 0:
			s.commands = append(s.commands, line)
		}
	}
	return all
}

// command is one line: a verb, then words and key=value pairs.
type command struct {
	verb  string
	words []string
	pairs map[string]string
}

func parseCommand(line string) (command, bool) {
	line, _, _ = strings.Cut(line, "#")
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return command{}, false
	}
	cmd := command{verb: fields[0], pairs: make(map[string]string)}
	for _, f := range fields[1:] {
		if key, value, ok := strings.Cut(f, "="); ok {
			cmd.pairs[key] = value
		} else {
			cmd.words = append(cmd.words, f)
		}
	}
	return cmd, true
}

// has reports whether the word stands in the command.
func (c command) has(word string) bool {
	return slices.Contains(c.words, word)
}

// number reads the k-th word, or 0.
func (c command) number(k int) int64 {
	if k >= len(c.words) {
		return 0
	}
	n, _ := strconv.ParseInt(c.words[k], 10, 64)
	return n
}

// pair reads a numeric pair, or 0.
func (c command) pair(key string) int64 {
	n, _ := strconv.ParseInt(c.pairs[key], 10, 64)
	return n
}

// ordinals writes node numbers as the scenarios count them: from 1.
func ordinals(nodes []int) string {
	parts := make([]string, len(nodes))
	for k, i := range nodes {
		parts[k] = strconv.Itoa(i + 1)
	}
	return strings.Join(parts, ",")
}
