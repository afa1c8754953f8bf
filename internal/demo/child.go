//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// Limits for children.
const (
	obeyWithin = 5 * time.Second // a stop or a continue
	endWithin  = 5 * time.Second // an orderly end, before it is killed
)

// child is a process of ours with a process group of its own: the terminal's
// Ctrl-C reaches the director alone, which ends the children in order.
type child struct {
	name   string
	pid    int
	stdout io.ReadCloser
	stderr *lastWords
	states chan syscall.WaitStatus // stops and continuations
	gone   chan struct{}           // closed when it has ended
	status syscall.WaitStatus      // of the end; only after gone
}

// startChild starts a program and gives it its input.
func startChild(name string, cmd *exec.Cmd, input []byte) (*child, error) {
	c := &child{name: name, stderr: newLastWords(), states: make(chan syscall.WaitStatus, 64), gone: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	stdin, errIn := cmd.StdinPipe()
	stdout, errOut := cmd.StdoutPipe()
	stderr, errErr := cmd.StderrPipe()
	if err := errors.Join(errIn, errOut, errErr, cmd.Start()); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	c.pid, c.stdout = cmd.Process.Pid, stdout
	// Stops are seen by wait4 only, so os/exec must not wait for the process.
	_ = cmd.Process.Release()
	go c.watch()
	go c.stderr.drain(stderr)
	_, err := stdin.Write(input)
	if err = errors.Join(err, stdin.Close()); err != nil {
		c.end()
		return nil, fmt.Errorf("cannot talk to %s: %w", name, err)
	}
	return c, nil
}

// watch follows the process until its end.
func (c *child) watch() {
	defer close(c.gone)
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(c.pid, &status, syscall.WUNTRACED|syscall.WCONTINUED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil || status.Exited() || status.Signaled():
			c.status = status
			return
		default:
			select {
			case c.states <- status:
			default: // nobody asked for so many
			}
		}
	}
}

// stop stops the process and returns when the kernel says that it stands.
func (c *child) stop(ctx context.Context) error {
	return c.change(ctx, syscall.SIGSTOP, syscall.WaitStatus.Stopped)
}

// resume is the opposite of stop.
func (c *child) resume(ctx context.Context) error {
	return c.change(ctx, syscall.SIGCONT, syscall.WaitStatus.Continued)
}

func (c *child) change(ctx context.Context, signal syscall.Signal, done func(syscall.WaitStatus) bool) error {
	if err := c.signal(signal); errors.Is(err, syscall.ESRCH) {
		<-c.gone // its end may be seen a moment later
		return c.failure()
	} else if err != nil {
		return fmt.Errorf("signal %q to %s: %w", signal, c.name, err)
	}
	late := time.NewTimer(obeyWithin)
	defer late.Stop()
	for {
		select {
		case status := <-c.states:
			if done(status) {
				return nil
			}
		case <-c.gone:
			return c.failure()
		case <-late.C:
			return fmt.Errorf("signal %q to %s did nothing for %s", signal, c.name, obeyWithin)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// signal reaches the whole group.
func (c *child) signal(signal syscall.Signal) error {
	select {
	case <-c.gone:
		return syscall.ESRCH
	default:
		return syscall.Kill(-c.pid, signal)
	}
}

// failure says how the process ended, and what it said last.
func (c *child) failure() error {
	text := c.stderr.text()
	if c.status.Signaled() {
		return fmt.Errorf("%s was killed by %s\n%s", c.name, c.status.Signal(), text)
	}
	return fmt.Errorf("%s ended with code %d\n%s", c.name, c.status.ExitStatus(), text)
}

// succeeded waits for the end, which has to be a good one.
func (c *child) succeeded(ctx context.Context) error {
	select {
	case <-c.gone:
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.status.ExitStatus() != 0 {
		return c.failure()
	}
	return nil
}

// end ends the process, stopped or not, and returns when it is gone.
func (c *child) end() {
	_ = c.signal(syscall.SIGTERM)
	_ = c.signal(syscall.SIGCONT) // who stands still hears nothing
	late := time.NewTimer(endWithin)
	defer late.Stop()
	select {
	case <-c.gone:
	case <-late.C:
		_ = c.signal(syscall.SIGKILL)
		<-c.gone
	}
	_ = c.stdout.Close()
}
