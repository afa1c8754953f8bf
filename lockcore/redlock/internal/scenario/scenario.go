// Package scenario runs text scenarios against a value: blocks of commands, and the expected state of the
// value after each block.
package scenario

import (
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// Runner executes the commands of a scenario.
type Runner interface {
	Do(cmd Command) (printed string, err error)
	Show() string // returns the state of the value after a block
}

// Run runs a file of testdata in the format of datadriven: blocks of commands, one on each line, then
// ---- and the expected output. Lines that begin with # are comments. `go test -rewrite` replaces the
// expected output by the present one.
//
//	# two nodes have seen more leases than the third
//	acquire n=3
//	grant 1 5
//	grant 2 3
//	----
//	pending token=5 counts=1 confirm=2
func Run(t *testing.T, file string, r Runner) {
	t.Helper()
	datadriven.RunTest(t, file, func(t *testing.T, block *datadriven.TestData) string {
		t.Helper()
		var got strings.Builder
		for _, cmd := range commands(t, block) {
			printed, err := r.Do(cmd)
			if err != nil {
				t.Fatalf("%s: %s: %v", block.Pos, cmd.Cmd, err)
			}
			got.WriteString(printed)
		}
		got.WriteString(r.Show())
		return got.String()
	})
}

// Command is one line: a verb, then words and key=value pairs.
type Command struct{ datadriven.TestData }

// commands returns the commands of a block: datadriven's directive and its input.
func commands(t *testing.T, block *datadriven.TestData) []Command {
	t.Helper()
	list := []Command{{*block}}
	for line := range strings.Lines(block.Input) {
		verb, args, err := datadriven.ParseLine(line)
		if err != nil {
			t.Fatalf("%s: %v", block.Pos, err)
		}
		list = append(list, Command{datadriven.TestData{Pos: block.Pos, Cmd: verb, CmdArgs: args}})
	}
	return list
}

// Number returns the k-th argument, or 0.
func (c Command) Number(k int) int64 {
	if k >= len(c.CmdArgs) {
		return 0
	}
	n, _ := strconv.ParseInt(c.CmdArgs[k].Key, 10, 64)
	return n
}

// Pair returns the value of a pair, or "".
func (c Command) Pair(key string) string {
	for _, arg := range c.CmdArgs {
		if arg.Key == key && len(arg.Vals) == 1 {
			return arg.Vals[0]
		}
	}
	return ""
}

// PairNumber returns the value of a numeric pair, or 0.
func (c Command) PairNumber(key string) int64 {
	n, _ := strconv.ParseInt(c.Pair(key), 10, 64)
	return n
}

// Ordinals formats node numbers as scenarios count them, from 1.
func Ordinals(nodes []int) string {
	parts := make([]string, len(nodes))
	for k, i := range nodes {
		parts[k] = strconv.Itoa(i + 1)
	}
	return strings.Join(parts, ",")
}
