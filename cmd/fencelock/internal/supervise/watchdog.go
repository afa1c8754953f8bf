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

// The watchdog reads lines: the group to watch and the grace in nanoseconds; when to
// kill it, in nanoseconds of the monotonic clock; and the end.
const (
	lineWatch = "watch %d %d\n"
	lineKill  = "kill %d\n"
	lineDone  = "done\n"
)

// watchdogPipe is the supervisor's end.
type watchdogPipe struct {
	pipe  *os.File
	mu    sync.Mutex
	ended chan bool // whether it killed the group
}

// watchdogKilled is the watchdog's exit code if it had to kill.
const watchdogKilled = 3

// startWatchdog starts it in a session of its own, where no signal to the job or
// the terminal's end reaches it.
func startWatchdog(opts Options) (*watchdogPipe, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	cmd := exec.Command(opts.Watchdog[0], opts.Watchdog[1:]...) //nolint:noctx // this program; it ends when the pipe does
	cmd.Stdin, cmd.Env, cmd.Dir = r, []string{}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("cannot start the watchdog: %w", err)
	}
	p := &watchdogPipe{pipe: w, ended: make(chan bool, 1)}
	go func() {
		_ = cmd.Wait() // its code says it
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

// extend reads the clock first: a pause between the two makes the deadline earlier.
func (p *watchdogPipe) extend(deadline time.Time) {
	now := monotonic()
	p.tellf(lineKill, now+time.Until(deadline))
}

func (p *watchdogPipe) dismiss() (killed bool) {
	p.tellf(lineDone)
	_ = p.pipe.Close()
	return <-p.ended
}

// monotonic reads the clock that all processes of the machine share.
func monotonic() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic("no monotonic clock: " + err.Error()) // every supported system has one
	}
	return time.Duration(now.Nano())
}

// Watch is the watchdog's program: it reads what the supervisor tells it, and
// returns when all is over, with the exit code of its process.
func Watch(in io.Reader) (code int) {
	// kill by name, a hang-up, or Ctrl-C are for the command.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	_ = unix.Setpriority(unix.PRIO_PGRP, 0, -10) //nolint:mnd // as well as it may
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

// watch is what the watchdog knows.
type watch struct {
	pgid  int
	grace time.Duration
	kill  time.Duration // on the monotonic clock

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

// last hears what may just have been said before it kills: a watchdog that was
// starved has both before it, the news and the deadline.
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

// abandoned ends the group, since its supervisor has died without a word.
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
