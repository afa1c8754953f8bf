package stand

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/bench/internal/cpu"
)

const (
	readyWithin = 60 * time.Second
	stopWithin  = 25 * time.Second
	askEvery    = 20 * time.Millisecond
)

// Program is a child process.
type Program struct {
	cmd  *exec.Cmd
	out  *output
	done chan struct{}
}

// startProgram starts a program that ends with the scope. It also ends with this process, even if
// this process is killed.
func startProgram(s *Scope, path string, env []string, args ...string) (*Program, error) {
	p := &Program{cmd: exec.Command(path, args...), out: &output{}, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The kernel sends the parent-death signal when the forking thread ends, so the thread is
		// kept.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	s.Cleanup(p.Stop)
	return p, nil
}

// PID returns the process id.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// CPU is the processor time of the process.
func (p *Program) CPU() time.Duration { return cpu.Process(p.PID()) }

// Stop sends SIGTERM, and kills the program if it does not end in time.
func (p *Program) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopWithin):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// await calls ready until it returns nil.
func (p *Program) await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended; it printed:\n%s", p.cmd.Path, p.out.text())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; it printed:\n%s", p.cmd.Path, errors.Join(err, context.Cause(ctx)), p.out.text())
		case <-time.After(askEvery):
		}
	}
}

// output keeps the beginning of a program's output.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const outputKept = 64 << 10

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if left := outputKept - o.buf.Len(); left > 0 {
		o.buf.Write(p[:min(left, len(p))])
	}
	return len(p), nil
}

func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// freePort returns a port on which no program listens now.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
