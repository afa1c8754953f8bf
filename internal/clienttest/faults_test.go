package clienttest_test

import (
	"flag"
	"testing"
	"time"

	"github.com/fencelock/fencelock/clients/faults"
	"github.com/fencelock/fencelock/internal/testenv"
)

var runFor = flag.Duration("for", 40*time.Second, "how long TestSoakFaults takes")

// The client under faults of everything, see clients/faults; one of its processes sends batches.
func TestSoakFaults(t *testing.T) {
	testenv.Soak(t, "a Go client that works late, or leaks, under faults")
	bin := testenv.Build(t, "./faultworker")
	faults.Run(t, *runFor, [][]string{{bin}, {bin}, {bin, "batches"}})
}
