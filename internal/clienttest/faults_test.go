package clienttest_test

import (
	"flag"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencelock/fencelock/clients/faults"
)

var runFor = flag.Duration("for", 40*time.Second, "how long TestSoakFaults takes")

// The client under faults of everything, see clients/faults; one of its processes sends batches.
func TestSoakFaults(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "worker")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./faultworker").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	faults.Run(t, *runFor, [][]string{{bin}, {bin}, {bin, "batches"}})
}
