package nodetest

import (
	"embed"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/fencelock/fencelock/lockcore/node"
)

// texts are the rules of a node: one file per rule, with scenarios in the format of doc.go.
//
//go:embed rules
var texts embed.FS

// rulesIn returns the folder with the texts. It is the embedded one, except in the tests of this package and
// of replica, where it is the source folder, so that -rewrite changes the files.
func rulesIn(tb testing.TB) string {
	tb.Helper()
	own := filepath.Join("..", "nodetest", "rules") // seen from here and from replica
	if _, err := os.Stat(own); err == nil {
		return own
	}
	copied := tb.TempDir()
	if err := os.CopyFS(copied, texts); err != nil {
		tb.Fatal(err)
	}
	return filepath.Join(copied, "rules")
}

// rules runs the texts, each scenario on a new node. Batches print the same.
func rules(t *testing.T, open func(t *testing.T, wanted Wanted) Harness, w way) {
	t.Helper()
	anyOpen := func(tb testing.TB, wanted Wanted) Harness {
		t, _ := tb.(*testing.T) // Run passes a *testing.T
		return open(t, wanted)
	}
	files, err := filepath.Glob(filepath.Join(rulesIn(t), "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { playFile(t, file, anyOpen, w) })
	}
}

// playFile runs the scenarios of a file.
func playFile(tb testing.TB, file string, open Open, w way) {
	tb.Helper()
	playing := make(map[testing.TB]*suite) // by subtest: each is a scenario
	datadriven.RunTestAny(tb, file, func(tb testing.TB, block *datadriven.TestData) string {
		tb.Helper()
		s := playing[tb]
		if s == nil {
			s = newSuite(tb, w)
			playing[tb] = s
		}
		return s.play(open, block)
	})
}

// play runs a block. The first block of a scenario may be "node", which lists the scenario's requirements. On
// a node that does not meet them, the scenario is skipped.
func (s *suite) play(open Open, block *datadriven.TestData) string {
	s.Helper()
	first, err := parseLine(block.FullCmd())
	s.must(err)
	lines := slices.DeleteFunc(append([]string{block.FullCmd()}, strings.Split(block.Input, "\n")...), func(l string) bool { return l == "" })
	if s.Node == nil && !s.lacking {
		s.open(open, first)
	}
	switch {
	case s.lacking:
		return block.Expected
	case first.verb == "node":
		return ""
	case first.verb == "after":
		return s.after(first, lines[1:], block.Expected)
	case first.verb == "within":
		return s.within(first, lines[1:], block.Expected)
	case first.verb == "batch":
		return s.batch(lines[1:])
	case first.verb == "every":
		return s.every(first.words[0], lines[1:])
	}
	return s.runLines(lines)
}

// open makes the scenario's node: "node [blank] [clock] [restart] [wipe] [expel] [counters=TIME]". The node is
// admitted, unless it must be blank. "node stored" is a node as another version left it.
func (s *suite) open(open Open, first line) {
	s.Helper()
	var needs []string
	wanted := Wanted{CounterTTL: counters}
	if first.verb == "node" {
		needs = first.words
		if text, ok := first.pairs["counters"]; ok {
			var err error
			wanted.CounterTTL, err = s.time(text)
			s.must(err)
		}
	}
	wanted.Blank = slices.Contains(needs, "blank") || slices.Contains(needs, "wipe")
	s.Harness = open(s.TB, wanted)
	s.Node.Join(s.cluster)
	s.lacking = slices.ContainsFunc(needs, func(what string) bool { return !s.has(what) })
	switch {
	case slices.Contains(needs, "stored"):
		s.began = s.began.Add(-rounding)
	case !s.lacking && !slices.Contains(needs, "blank"):
		s.admit(100)
	}
}

// has reports whether the node meets a requirement of a scenario.
func (s *suite) has(what string) (has bool) {
	s.Helper()
	switch what {
	case "blank":
		if has = s.observe().Empty; !has {
			s.Fatal("a blank node was wanted, and this one is not")
		}
	case "clock":
		has = s.Advance != nil
	case "restart":
		has = s.Restart != nil
	case "wipe":
		has = s.Wipe != nil
	case "expel":
		_, has = s.Node.(expeller)
	case "stored":
		has = true
	default:
		s.Fatalf("a node has no %q", what)
	}
	return has
}

// after lets time pass, and executes the lines until they print what is expected. If the test sets the clock,
// it executes them once.
func (s *suite) after(l line, lines []string, expected string) (printed string) {
	s.Helper()
	d, err := s.time(l.words[0])
	s.must(err)
	if s.Advance != nil {
		s.Advance(d)
		return s.runLines(lines)
	}
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if printed = s.runLines(lines); printed == expected {
			return printed
		}
		select {
		case <-deadline.C:
			return printed
		case <-tick.C:
		}
	}
}

// within executes lines that must finish within a time. On a real clock the scenario ends here if they took
// longer, because the state under test has expired.
func (s *suite) within(l line, lines []string, expected string) string {
	s.Helper()
	d, err := s.time(l.words[0])
	s.must(err)
	began := time.Now()
	printed := s.runLines(lines)
	if s.Advance == nil && time.Since(began) >= d {
		s.lacking = true
		return expected
	}
	return printed
}

// batch does operations in one batch.
func (s *suite) batch(lines []string) string {
	s.Helper()
	var ops []node.Op
	for _, text := range lines {
		l, err := parseLine(text)
		s.must(err)
		ops = append(ops, s.op(l))
	}
	replies, err := SubmitBatch(s.Node, ops...)
	s.must(err)
	var printed strings.Builder
	for i, r := range replies {
		printed.WriteString(s.reply(ops[i].Kind, r) + "\n")
	}
	return printed.String()
}

// every executes the lines for each text of a list, or of a sample of it, as $it. Each time "+0" is the
// present high-water mark. All runs must print the same.
func (s *suite) every(list string, lines []string) (printed string) {
	s.Helper()
	base := s.base
	defer func() { s.given, s.base = nil, base }()
	values := lists[list]()
	for i, it := range values {
		if i%max(1, s.way.sample) > 0 {
			continue
		}
		s.given = map[string]string{"$it": it, "$before": "\n" + it, "$after": it + " ", "$around": " " + it + " s1 t1"}
		s.base = s.observe().Marks.HighWater
		now := s.runLines(lines)
		if i > 0 && now != printed {
			s.Fatalf("with %q:\n%swith %q:\n%s", values[0], printed, it, now)
		}
		printed = now
	}
	return printed
}

func (s *suite) runLines(lines []string) string {
	s.Helper()
	var printed strings.Builder
	for _, text := range lines {
		if text = strings.TrimSpace(text); strings.HasPrefix(text, "#") {
			continue
		}
		for name, value := range s.given {
			text = strings.ReplaceAll(text, name, strconv.Quote(value))
		}
		if reply := s.run(text); reply != "" {
			printed.WriteString(reply + "\n")
		}
	}
	return printed.String()
}

func (s *suite) run(text string) string {
	s.Helper()
	l, err := parseLine(text)
	s.must(err)
	if command, ok := commands[l.verb]; ok {
		return command(s, l)
	}
	if _, ok := operations[l.verb]; !ok {
		s.Fatalf("there is no command %q; after, within, batch and every begin a block", l.verb)
	}
	op := s.op(l)
	reply := s.do(op)
	if reply.Outcome == node.Failed {
		s.Logf("%s: %v", text, reply.Err)
	}
	return s.reply(op.Kind, reply)
}

func newSuite(tb testing.TB, w way) *suite {
	s := &suite{
		TB: tb, way: w, cluster: node.Cluster{Nodes: 1, Hash: "c0ffee"}, began: time.Now(),
		tickets: make(map[string]node.Ticket), plans: make(map[string]node.Admission),
		locks: make(map[string]node.CarriedLock), listening: make(map[string]*recorder),
	}
	s.times, s.passed = map[time.Duration]bool{longTTL: true}, s.mayHavePassed
	return s
}
