package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// said is the result of a run of the program.
type said struct {
	code        int
	out, errOut string
}

// tool runs the program against a server, with only PATH in its environment.
func (p *process) tool(stdin string, env []string, args ...string) said {
	p.t.Helper()
	cmd := command(p.t, append([]string{"PATH=" + os.Getenv("PATH"), "FENCELOCK_URL=" + p.url}, env...), args...)
	return finish(p.t, cmd, stdin)
}

func finish(t *testing.T, cmd *exec.Cmd, stdin string) said {
	t.Helper()
	var out, errOut testenv.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return said{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

func (s said) wants(t *testing.T, what string, code int, out, errOut string) {
	t.Helper()
	if s.code != code || !strings.Contains(s.out, out) || !strings.Contains(s.errOut, errOut) {
		t.Errorf("%s: code %d, want %d; said %q, want %q; complained %q, want %q", what, s.code, code, s.out, out, s.errOut, errOut)
	}
}

// background runs the program and waits until the command under the lock says "here".
func (p *process) background(env []string, args ...string) (*exec.Cmd, *testenv.Buffer) {
	p.t.Helper()
	cmd := command(p.t, append([]string{"PATH=" + os.Getenv("PATH"), "FENCELOCK_URL=" + p.url}, env...), args...)
	out := &testenv.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = cmd.Process.Kill() })
	p.until("the command runs", func() bool { return strings.Contains(out.String(), "here") })
	return cmd, out
}

// exits waits for the end of a command.
func exits(t *testing.T, cmd *exec.Cmd, code int, out *testenv.Buffer, says string) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatalf("it does not end: %s", out)
	}
	if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(out.String(), says) {
		t.Errorf("exit code %d, want %d; said %q, want %q", got, code, out, says)
	}
}
