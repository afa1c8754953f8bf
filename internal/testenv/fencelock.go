package testenv

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Fencelock is a process of the product's server. It keeps its address, settings and folder when its test kills it
// and starts it again.
type Fencelock struct {
	control
	process *process
	addr    string
	stdout  *Buffer
}

// StartFencelock starts a server and returns when it listens. The server has only these environment variables. By
// default it listens on a port of its own and has a folder of its own. It ends with the test.
func StartFencelock(t testing.TB, env ...string) *Fencelock {
	t.Helper()
	NeedsServer(t)
	cmd := exec.Command(Program(t), "serve")
	cmd.Env = env
	return ServeCommand(t, cmd)
}

// ServeCommand is StartFencelock for a command that becomes a server: another version of the program, or a shell that
// ends in "exec fencelock serve".
func ServeCommand(t testing.TB, cmd *exec.Cmd) *Fencelock {
	t.Helper()
	NeedsServer(t)
	f := &Fencelock{stdout: &Buffer{}}
	s, err := startOwn("fencelock", func(s *own) error {
		s.taken = "another program uses the port"
		s.answers = f.listens
		f.process = f.prepare(cmd, s)
		s.server = f.process
		return nil
	})
	if err != nil {
		t.Fatalf("testenv: start fencelock: %v", err)
	}
	f.control = control{t: t, name: "fencelock " + s.addr(), srv: s, await: s.awaitReady}
	s.cleanUp(t)
	f.addr = f.mustSay().Addr
	return f
}

func (f *Fencelock) prepare(cmd *exec.Cmd, s *own) *process {
	env := append([]string{"FENCELOCK_LISTEN=" + s.addr(), "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0"}, cmd.Env...)
	return &process{
		path: cmd.Path, args: cmd.Args[1:], dir: s.dir, stopSignal: syscall.SIGTERM, reapSignal: syscall.SIGKILL,
		stopsAtOnce: true, // the second signal ends a server without order
		adjust: func(next *exec.Cmd) {
			next.Env, next.Stdout = env, f.stdout
			if cmd.Dir != "" {
				next.Dir = cmd.Dir
			}
		},
	}
}

// listening is the line of the log in which a server names its addresses.
type listening struct {
	Message   string `json:"msg"`
	Addr      string `json:"addr"`
	AdminAddr string `json:"admin_addr"`
}

// said returns that line of the present process.
func (f *Fencelock) said() (l listening, err error) {
	for line := range bytes.Lines(f.process.latest()) {
		if json.Unmarshal(line, &l) == nil && l.Message == "listening" {
			return l, nil
		}
	}
	return listening{}, errors.New("it does not say where it listens")
}

func (f *Fencelock) listens() error {
	_, err := f.said()
	return err
}

func (f *Fencelock) mustSay() listening {
	f.t.Helper()
	l, err := f.said()
	if err != nil {
		f.t.Fatalf("testenv: %s: %v", f.name, err)
	}
	return l
}

// Addr returns the host and port of the API.
func (f *Fencelock) Addr() string { return f.addr }

// URL returns the address of the API with http://.
func (f *Fencelock) URL() string { return "http://" + f.addr }

// AdminAddr returns the host and port of the metrics. They change with a restart.
func (f *Fencelock) AdminAddr() string { return f.mustSay().AdminAddr }

// PID returns the number of the process.
func (f *Fencelock) PID() int { return f.process.cmd.Process.Pid }

// Dir returns the folder in which the server works.
func (f *Fencelock) Dir() string { return f.process.cmd.Dir }

// Running reports whether the process lives, frozen or not.
func (f *Fencelock) Running() bool { return running(f.process) }

// Stdout returns what the server printed on its standard output. Logs has its log.
func (f *Fencelock) Stdout() string { return f.stdout.String() }

// Signal sends a signal to the process, if it lives.
func (f *Fencelock) Signal(s syscall.Signal) {
	f.t.Helper()
	if err := f.process.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		f.t.Fatalf("testenv: signal %s to %s: %v", s, f.name, err)
	}
}

// Exit waits for the end of the process and returns its exit code, which is -1 if a signal ended it.
func (f *Fencelock) Exit(within time.Duration) int {
	f.t.Helper()
	select {
	case <-f.process.exited():
		return f.process.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		f.t.Fatalf("testenv: %s has not ended within %s", f.name, within)
		return -1
	}
}
