package faults

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// Speed runs a program that measures how much longer a pair takes with a client than in a bare loop, in the
// same run. It fails the test if a ratio is larger than limit. The program's arguments are the server's URL,
// the number of rounds, and the number of pairs in each. It prints {"ratios": {name: ratio}, "others": …,
// "microseconds": …}; others are logged and not judged. A ratio may be wrong while the machine does other
// work, so the program has five tries.
func Speed(t *testing.T, limit float64, command ...string) {
	t.Helper()
	server := testenv.StartFencelock(t)
	args := slices.Concat(command[1:], []string{server.URL(), "21", "60"})
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
