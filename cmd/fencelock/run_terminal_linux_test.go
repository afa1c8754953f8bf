package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// openPTY opens a terminal. What is written to the first file is typed at the terminal, and what the terminal shows
// can be read there. The program uses the second file.
func openPTY(t *testing.T) (outer, inner *os.File) {
	t.Helper()
	outer, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { _ = outer.Close() })
	if err := unix.IoctlSetPointerInt(int(outer.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(outer.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	inner, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return outer, inner
}

// onTerminal runs a program as the leader of a session that the terminal controls.
func (p *process) onTerminal(name string, args ...string) (cmd *exec.Cmd, outer *os.File, screen *testenv.Buffer) {
	p.t.Helper()
	path := testenv.Program(p.t)
	outer, inner := openPTY(p.t)
	cmd = exec.Command(name, args...)
	cmd.Dir, cmd.Env = p.t.TempDir(), []string{"PATH=" + os.Getenv("PATH"), "FENCELOCK_URL=" + p.url, "PROGRAM=" + path, "PS1=$ ", "TERM=dumb"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inner, inner, inner
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	_ = inner.Close()
	p.t.Cleanup(func() { _ = cmd.Process.Kill() })
	screen = &testenv.Buffer{}
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
	return cmd, outer, screen
}

func (p *process) shows(screen *testenv.Buffer, text string) {
	p.t.Helper()
	defer func() {
		if p.t.Failed() {
			p.t.Logf("the screen: %q", screen)
		}
	}()
	p.until("the screen shows "+text, func() bool { return strings.Contains(screen.String(), text) })
}

// The command is in the terminal's foreground: it reads what is typed, and Ctrl-C
// reaches it.
func TestRunOnATerminal(t *testing.T) {
	t.Parallel()
	p := start(t)
	path := testenv.Program(t)
	cmd, keys, screen := p.onTerminal(path, "run", "r", "--", "sh", "-c",
		`trap 'echo inter""rupted; exit 5' INT; read line; echo "typed <$line>"; while :; do sleep 0.02; done`)
	_, _ = keys.WriteString("something\n")
	p.shows(screen, "typed <something>")
	_, _ = keys.WriteString("\x03")
	p.shows(screen, "interrupted")
	exits(t, cmd, 5, screen, "")
}

// At a terminal, a command that waits says for what. In a script it does not.
func TestWaitingIsSaidOnATerminal(t *testing.T) {
	t.Parallel()
	p := start(t)
	path := testenv.Program(t)
	for _, words := range [][]string{{"run", "r", "--", "echo", "got it"}, {"acquire", "--export", "r"}} {
		var held wire.Lease
		got := p.tool("", nil, "acquire", "r")
		if err := json.Unmarshal([]byte(got.out), &held); err != nil {
			t.Fatalf("%+v, %v", got, err)
		}
		_, _, screen := p.onTerminal(path, words...)
		p.shows(screen, "waiting for r; fencelock get shows its holder")
		if quiet := p.tool("", nil, "acquire", "--wait", "1500ms", "r"); strings.Contains(quiet.errOut, "waiting") {
			t.Errorf("a script is told: %s", quiet.errOut)
		}
		p.tool("", nil, "release", held.LeaseID).wants(t, "release", 0, "", "")
		if words[0] == "run" {
			p.shows(screen, "got it")
		} else {
			p.shows(screen, "FENCELOCK_LEASE_ID")
		}
	}
}

// In a shell with job control Ctrl-Z stops the command and gives the prompt back,
// and fg continues with it, under the same lease.
func TestRunAsAJob(t *testing.T) {
	t.Parallel()
	bash := testenv.Installed(t, "bash", "bash")
	p := start(t)
	_, keys, screen := p.onTerminal(bash, "--norc", "-i")
	p.shows(screen, "$ ")
	_, _ = keys.WriteString(`"$PROGRAM" run --ttl 30s r -- sh -c 'echo he""re; read line; echo "typed <$line>"; read line; echo "typed <$line>"'` + "\n")
	p.shows(screen, "here")
	_, _ = keys.WriteString("\x1a")
	p.shows(screen, "suspended: the lease is not extended")
	p.shows(screen, "Stopped")
	_, _ = keys.WriteString("echo prompt $((40+2))\n")
	p.shows(screen, "prompt 42")
	_, _ = keys.WriteString("fg\n")
	_, _ = keys.WriteString("one\n")
	p.shows(screen, "typed <one>")
	_, _ = keys.WriteString("two\n")
	p.shows(screen, "typed <two>")
	_, _ = keys.WriteString("echo code $? again\n")
	p.shows(screen, "code 0 again")

	// In the background it stops when it wants to read, and gets the terminal with fg.
	_, _ = keys.WriteString(`"$PROGRAM" run r -- sh -c 'echo wai""ting; read line; echo "typed <$line>"' &` + "\n")
	p.shows(screen, "waiting")
	// An fg that comes while it is about to stop makes the shell see it stop again.
	_, _ = keys.WriteString(`until jobs -s | grep -q .; do sleep 0.05; done; echo has sto""pped` + "\n")
	p.shows(screen, "has stopped")
	_, _ = keys.WriteString("fg\n")
	_, _ = keys.WriteString("three\n")
	p.shows(screen, "typed <three>")
	// With its output in a pipe, beside a program that wants the terminal, too.
	_, _ = keys.WriteString(`"$PROGRAM" run r -- sh -c 'read line; echo "typed <$line>"' | sed s/typed/piped/` + "\n")
	_, _ = keys.WriteString("four\n")
	p.shows(screen, "piped <four>")
	_, _ = keys.WriteString("exit\n")
}
