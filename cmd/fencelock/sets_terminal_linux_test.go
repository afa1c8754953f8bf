package main

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// On a terminal "sets apply" shows the plan and asks. Any answer except the one word changes nothing.
func TestSetsApplyAsksOnATerminal(t *testing.T) {
	testenv.Long(t, "a change that is made although the person at the terminal said no")
	t.Parallel()
	nodes := testenv.StartRedisN(t, 2)
	present := [][]*testenv.Redis{nodes[:1]}
	env := longLeases(changeOf(present, [][]*testenv.Redis{nodes[:1], nodes[1:]}))
	p := startChanging(t, 1, longLeases(changeOf(present, nil)), env).servers[0]
	args := append([]string{"sets"}, printed(t, env, "apply")...)
	for _, c := range []struct {
		typed string
		code  int
		after string
	}{{"yes\n", 1, "the change has not begun"}, {"apply\n", 0, "the change is complete"}} {
		outer, inner := openPTY(t)
		cmd := exec.Command(testenv.Program(t), args...)
		cmd.Dir, cmd.Env = t.TempDir(), env
		cmd.Stdin, cmd.Stdout, cmd.Stderr = inner, inner, inner
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = inner.Close()
		screen := &testenv.Buffer{}
		go func() {
			buf := make([]byte, 4096)
			for {
				n, err := outer.Read(buf)
				_, _ = screen.Write(buf[:n])
				if err != nil {
					return
				}
			}
		}()
		p.shows(screen, `Type "apply" to continue`)
		if !strings.Contains(screen.String(), "locks are copied") {
			t.Errorf("it asks without the plan: %q", screen)
		}
		if _, err := outer.WriteString(c.typed); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the code tells
		if code := cmd.ProcessState.ExitCode(); code != c.code {
			t.Errorf("%q: exit code %d, want %d: %q", c.typed, code, c.code, screen)
		}
		runSets(t, env, "status").wants(t, "status after "+c.typed, 0, "now: "+c.after, "")
	}
}
