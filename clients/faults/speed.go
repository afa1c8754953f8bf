package faults

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"testing"
)

// Speed runs a program that measures what a pair costs with a client beside a bare loop, in the same run, and
// fails if it is more than so many times that. The program is called with the server's URL, the number of rounds
// and that of the pairs in each, and says {"ratios": {name: ratio}, "others": …, "microseconds": …}; others are shown
// and not judged. On a machine that does other work a ratio may be off, so it has five tries.
func Speed(t *testing.T, limit float64, command ...string) {
	t.Helper()
	server := Start(t)
	args := slices.Concat(command[1:], []string{"http://" + server.Address(), "21", "60"})
	for tries := 5; ; tries-- {
		cmd := exec.CommandContext(t.Context(), command[0], args...)
		cmd.Stderr = os.Stderr
		said, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", cmd, err)
		}
		var measured struct {
			Microseconds map[string]float64 `json:"microseconds"`
			Ratios       map[string]float64 `json:"ratios"`
			Others       map[string]float64 `json:"others"`
		}
		if err := json.Unmarshal(said, &measured); err != nil || len(measured.Ratios) == 0 {
			t.Fatalf("%v: %s", err, said)
		}
		worst := 0.0
		for _, ratio := range measured.Ratios {
			worst = max(worst, ratio)
		}
		t.Logf("a pair, in microseconds: %v; beside a bare loop: %v, others: %v", measured.Microseconds, measured.Ratios, measured.Others)
		if worst <= limit {
			return
		}
		if tries == 1 {
			t.Fatalf("a pair costs %.2f times a bare one, want %.1f at most", worst, limit)
		}
	}
}
