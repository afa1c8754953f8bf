package load

import (
	"os/exec"
	"testing"
	"time"

	"github.com/fencelock/fencelock/bench/internal/peer"
)

// counting is a program that says what it was told, and as busy turns and failures how many milliseconds
// passed before it was to measure, and then until it was to stop.
const counting = `now() { echo $(($(date +%s%N) / 1000000)); }
read job; begin=$(now); echo ready; read a; measure=$(now); read b; stop=$(now)
echo "{\"acquires\":[1000],\"pairs\":[2000,4000],\"busy\":$((measure - begin)),\"failed\":$((stop - measure)),\"error\":\"$a $b\"}"`

func TestRunOfAProgram(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	j := job(2, "#", 0)
	j.Warm, j.Measure = 80*time.Millisecond, 120*time.Millisecond
	p := peer.NewProgram("sh", "127.0.0.1:1", nil, sh, "-c", counting)
	o, err := Run(t.Context(), p, j, func() Usage { return Usage{Load: p.CPU()} })
	if err != nil || o.Pairs != 2 || o.Pair.P99 != 4*time.Millisecond || o.Acquire.P50 != time.Millisecond || o.Err != "measure stop" {
		t.Errorf("%+v, %v", o, err)
	}
	if o.Busy < 79 || o.Busy+o.Failed < 199 { // it may hear of both late, and never early
		t.Errorf("told to measure after %d ms, and to stop %d ms later", o.Busy, o.Failed)
	}
	for _, script := range []string{"exit 1", "echo what", "read job; echo ready; read a; read b; echo {"} {
		if _, err := Run(t.Context(), peer.NewProgram("sh", "127.0.0.1:1", nil, sh, "-c", script), job(2, "#", 0), noUsage); err == nil {
			t.Errorf("%q: no error", script)
		}
	}
}
