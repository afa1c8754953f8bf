//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package supervise

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The lines that the watchdog reads: the group and the grace in nanoseconds; the deadline in nanoseconds
// of the monotonic clock; and the end.
const (
	lineWatch = "watch %d %d\n"
	lineKill  = "kill %d\n"
	lineDone  = "done\n"
)

// watchdogPipe is the supervisor's end of the pipe.
type watchdogPipe struct {
	pipe  *os.File
	mu    sync.Mutex
	ended chan bool // receives whether the watchdog killed the group
}

// watchdogKilled is the watchdog's exit code if it had to kill.
const watchdogKilled = 3

// startWatchdog starts the watchdog in its own session, so that signals to the job and the end of the
// terminal do not reach it.
func startWatchdog(opts Options) (*watchdogPipe, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	cmd := exec.Command(opts.Watchdog[0], opts.Watchdog[1:]...) //nolint:noctx // this program; it ends when the pipe does
	cmd.Stdin, cmd.Env, cmd.Dir = r, []string{}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := startChild(cmd); err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("cannot start the watchdog: %w", err)
	}
	p := &watchdogPipe{pipe: w, ended: make(chan bool, 1)}
	go func() {
		_ = cmd.Wait() // the exit code has the result
		reaped(cmd.Process.Pid)
		p.ended <- cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == watchdogKilled
	}()
	return p, nil
}

func (p *watchdogPipe) tellf(format string, values ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = fmt.Fprintf(p.pipe, format, values...) // without a watchdog the supervisor does what it can alone
}

func (p *watchdogPipe) watch(pgid int, grace time.Duration, deadline time.Time) {
	p.tellf(lineWatch, pgid, grace)
	p.extend(deadline)
}

// extend reads the clock first, so that a pause between the two calls makes the deadline earlier, not
// later.
func (p *watchdogPipe) extend(deadline time.Time) {
	now := monotonic()
	p.tellf(lineKill, now+time.Until(deadline))
}

func (p *watchdogPipe) dismiss() (killed bool) {
	p.tellf(lineDone)
	_ = p.pipe.Close()
	return <-p.ended
}

// monotonic returns the time of the clock that all processes of the machine share.
func monotonic() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic("no monotonic clock: " + err.Error()) // every supported system has one
	}
	return time.Duration(now.Nano())
}

// Watch is the watchdog's program. It reads the supervisor's lines until the group has ended, and returns
// the exit code of its process.
func Watch(in io.Reader) (code int) {
	// These signals are meant for the command.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	_ = unix.Setpriority(unix.PRIO_PGRP, 0, -10) //nolint:mnd // fails without the privilege
	w := watch{kill: math.MaxInt64}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(in); scan.Scan(); {
			lines <- scan.Text() + "\n"
		}
	}()
	w.run(lines)
	if w.killed {
		return watchdogKilled
	}
	return 0
}

// watch is the state of the watchdog.
type watch struct {
	pgid  int
	grace time.Duration
	kill  time.Duration // the deadline on the monotonic clock

	killed bool
}

func (w *watch) run(lines <-chan string) {
	timer := time.NewTimer(math.MaxInt64)
	defer timer.Stop()
	for over := false; !over; {
		select {
		case line, open := <-lines:
			over = w.hear(line, open)
		case <-timer.C:
			over = w.last(lines)
		}
		timer.Reset(w.kill - monotonic())
	}
}

// last reads the lines that are already in the pipe before the watchdog kills the group. A watchdog that
// got no processor for a while may find the deadline and a later line at the same time.
func (w *watch) last(lines <-chan string) (over bool) {
	select {
	case line, open := <-lines:
		return w.hear(line, open)
	case <-time.After(time.Millisecond):
	}
	w.killed = w.pgid > 1
	w.signal(syscall.SIGKILL)
	w.kill = math.MaxInt64
	return false
}

func (w *watch) hear(line string, open bool) (over bool) {
	if !open {
		w.abandoned()
		return true
	}
	w.read(line)
	return line == lineDone
}

func (w *watch) read(line string) {
	var next watch
	if n, _ := fmt.Sscanf(line, lineWatch, &next.pgid, &next.grace); n == 2 { //nolint:mnd // both
		w.pgid, w.grace = next.pgid, next.grace
	}
	if n, _ := fmt.Sscanf(line, lineKill, &next.kill); n == 1 {
		w.kill = next.kill
	}
}

// abandoned ends the group, because its supervisor died without ending the protocol.
func (w *watch) abandoned() {
	w.signal(syscall.SIGTERM)
	w.signal(syscall.SIGCONT)
	for end := min(w.kill, monotonic()+w.grace); w.pgid > 0 && groupAlive(w.pgid) && monotonic() < end; {
		time.Sleep(look)
	}
	w.signal(syscall.SIGKILL)
}

func (w *watch) signal(s syscall.Signal) {
	if w.pgid > 1 {
		_ = syscall.Kill(-w.pgid, s)
	}
}
