package load

import (
	"os/exec"
	"testing"
	"time"

	"github.com/fencelock/fencelock/bench/internal/peer"
)

// counting is a program that says when it was told to measure, and for how long.
const counting = `read job; echo ready; read a; read b
echo "{\"acquires\":[1000],\"pairs\":[2000,4000],\"busy\":1,\"failed\":2,\"error\":\"$a $b\"}"`

func TestRunOfAProgram(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	p := peer.NewProgram("sh", "127.0.0.1:1", nil, sh, "-c", counting)
	o, err := Run(t.Context(), p, job(2, "#", 0), func() Usage { return Usage{Load: p.CPU()} })
	if err != nil || o.Pairs != 2 || o.Pair.P99 != 4*time.Millisecond || o.Acquire.P50 != time.Millisecond ||
		o.Busy != 1 || o.Failed != 2 || o.Err != "measure stop" {
		t.Errorf("%+v, %v", o, err)
	}
	for _, script := range []string{"exit 1", "echo what", "read job; echo ready; read a; read b; echo {"} {
		if _, err := Run(t.Context(), peer.NewProgram("sh", "127.0.0.1:1", nil, sh, "-c", script), job(2, "#", 0), noUsage); err == nil {
			t.Errorf("%q: no error", script)
		}
	}
}
