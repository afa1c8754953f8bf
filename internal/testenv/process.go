package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// exitWithin bounds how long a server may take to end.
const exitWithin = 40 * time.Second

// signalEvery is how often the signal to end is repeated: Redis ignores it while it
// writes the first append-only file of a new replica.
const signalEvery = 250 * time.Millisecond

// server is one server program that can be started again and again on the
// same data: a local process or a container.
type server interface {
	// start begins a new incarnation. It need not respond yet.
	start() error
	// exited returns a channel that is closed when the present incarnation has ended.
	exited() <-chan struct{}
	// kill ends the server at once (SIGKILL), even if it is frozen, and waits for its end.
	kill() error
	// stop shuts the server down gracefully, and waits for its end.
	stop() error
	// freeze stops the server's execution. Its sockets stay open and send nothing.
	freeze() error
	// thaw continues a frozen server.
	thaw() error
	// logs returns the output of all its incarnations.
	logs() string
	// close releases resources that outlive an ended incarnation.
	close() error
}

// process is a server that runs as a child of the test process.
type process struct {
	path string   // the program
	args []string // without the program's name
	env  []string // added to the test's own environment
	dir  string   // its folder: log and reap script
	cred *syscall.Credential

	adjust      func(*exec.Cmd) // changes the command of each incarnation; nil for nothing
	stopSignal  syscall.Signal  // the signal for a graceful end
	stopsAtOnce bool            // a second signal would end it without grace: only SIGKILL is repeated
	reapSignal  syscall.Signal  // the signal that ends it after the test process has died
	withWorkers bool            // freezing also stops its child processes

	cmd   *exec.Cmd
	done  chan struct{}
	begun int64 // the length of the log when the present incarnation began
}

func (p *process) start() error {
	log, err := os.OpenFile(p.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := log.Stat()
	if err != nil {
		return errors.Join(err, log.Close())
	}
	cmd := p.command(p.path, p.args...)
	// The output goes to a file, because with a pipe Wait would also wait for grandchildren.
	cmd.Stdout, cmd.Stderr = log, log
	if p.adjust != nil {
		p.adjust(cmd)
	}
	dieWithParent(cmd.SysProcAttr, p.reapSignal)

	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		// The kernel sends the parent-death signal when the *thread* that forked ends. So that thread is kept
		// until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { _ = log.Close() }()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			removeReap(p.dir)
		}
		close(done)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.path, err)
	}
	p.cmd, p.done, p.begun = cmd, done, info.Size()
	return writeReap(p.dir, fmt.Sprintf("kill -%d %d; kill -CONT %d", p.reapSignal, cmd.Process.Pid, cmd.Process.Pid))
}

// command prepares a program that runs with this server's user and environment.
func (p *process) command(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred}
	return cmd
}

func (p *process) exited() <-chan struct{} { return p.done }

func (p *process) kill() error { return p.end(syscall.SIGKILL) }

func (p *process) stop() error { return p.end(p.stopSignal) }

// end sends the signal and waits until the server has ended. It returns nil if the server is down already.
func (p *process) end(sig syscall.Signal) error {
	if p.cmd == nil {
		return nil
	}
	pid := p.cmd.Process.Pid
	workers := p.workers(pid)
	var sent time.Time
	return poll(exitWithin, func() error {
		select {
		case <-p.done:
			return nil
		default:
		}
		if sent.IsZero() || time.Since(sent) > signalEvery && (sig == syscall.SIGKILL || !p.stopsAtOnce) {
			sent = time.Now()
			if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return err
			}
		}
		// A stopped process acts on no signal except SIGKILL, and stopped workers would outlive their killed
		// parent.
		for _, w := range append(workers, pid) {
			_ = syscall.Kill(w, syscall.SIGCONT)
		}
		return fmt.Errorf("%s (pid %d) still runs after signal %v", p.path, pid, sig)
	})
}

func (p *process) freeze() error {
	pid := p.cmd.Process.Pid
	if err := stopProcess(pid); err != nil {
		return err
	}
	// The parent is stopped first, because a stopped parent starts no more workers.
	for _, w := range p.workers(pid) {
		if err := stopProcess(w); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// stopProcess stops a process and waits until the stop has taken effect.
func stopProcess(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	return poll(exitWithin, func() error { return stopped(pid) })
}

func (p *process) thaw() error {
	pid := p.cmd.Process.Pid
	for _, w := range p.workers(pid) {
		_ = syscall.Kill(w, syscall.SIGCONT) // a worker that has ended need not be thawed
	}
	return syscall.Kill(pid, syscall.SIGCONT)
}

// workers lists the child processes that are frozen, thawed and ended together with the server.
func (p *process) workers(pid int) []int {
	if !p.withWorkers {
		return nil
	}
	return childrenOf(pid)
}

func (p *process) logPath() string { return filepath.Join(p.dir, "server.log") }

func (p *process) logs() string {
	b, err := os.ReadFile(p.logPath())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// latest returns the output of the present incarnation.
func (p *process) latest() []byte {
	b, err := os.ReadFile(p.logPath())
	if err != nil {
		return nil
	}
	return b[min(p.begun, int64(len(b))):]
}

func (*process) close() error { return nil }
