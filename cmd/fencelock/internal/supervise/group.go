//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// Group is a running command with all processes of its group.
type Group struct {
	opts     Options
	pgid     int
	leader   *leader
	watchdog *watchdogPipe
	tty      *terminal
	signals  chan os.Signal

	mu       sync.Mutex
	deadline time.Time

	moved  chan struct{} // signalled when the deadline moves
	ended  bool          // this process has ended the group
	killAt time.Time     // when the group is killed, if ended is true
}

// Start starts the watchdog and then the command. From then on it catches the signals that Run passes on.
// The caller must always call Run.
func Start(opts Options) (*Group, error) {
	g := &Group{opts: opts, deadline: opts.Deadline, moved: make(chan struct{}, 1), signals: make(chan os.Signal, 64)}
	signal.Notify(g.signals, passedOn()...)
	var err error
	if g.watchdog, err = startWatchdog(opts); err != nil {
		signal.Stop(g.signals)
		return nil, err
	}
	g.tty = openTerminal()
	if err := g.start(); err != nil {
		g.close()
		return nil, err
	}
	g.watchdog.watch(g.pgid, opts.Grace, opts.Deadline)
	return g, nil
}

func passedOn() []os.Signal {
	return []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTSTP,
	}
}

func (g *Group) start() error {
	o := g.opts
	cmd := &exec.Cmd{Path: o.Path, Args: o.Args, Env: o.Env, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	if g.tty.ours() && IsTerminal(o.Stdin) && IsTerminal(o.Stdout) {
		cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, g.tty.fd()
	}
	if err := startChild(cmd); err != nil {
		if cmd.SysProcAttr.Foreground {
			g.tty.give(syscall.Getpgrp()) // a process that failed may have had the terminal
		}
		return err
	}
	g.pgid = cmd.Process.Pid
	// Only wait4 shows stops, and the group's number is free for other processes as soon as its first
	// process is reaped. So os/exec must not wait for the process.
	_ = cmd.Process.Release()
	g.leader = follow(g.pgid)
	return nil
}

// Extend moves the deadline.
func (g *Group) Extend(deadline time.Time) {
	g.mu.Lock()
	g.deadline = deadline
	g.mu.Unlock()
	g.watchdog.extend(deadline)
	select {
	case g.moved <- struct{}{}:
	default:
	}
}

func (g *Group) until() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Until(g.deadline)
}

// Run passes signals on until the group has ended. When lost is closed, it ends the group: with SIGTERM,
// and with SIGKILL after the grace or at the deadline.
func (g *Group) Run(lost <-chan struct{}) Result {
	kill := time.NewTimer(g.until())
	defer kill.Stop()
	for {
		select {
		case <-g.leader.gone:
			return g.result()
		case stop := <-g.leader.stops:
			g.stopped(stop)
		case s := <-g.signals:
			g.pass(s)
		case <-lost:
			lost = nil
			left := min(g.opts.Grace, g.until())
			g.ended, g.killAt = true, time.Now().Add(left)
			g.signal(syscall.SIGTERM)
			kill.Reset(left)
		case <-g.moved:
			if !g.ended {
				kill.Reset(g.until())
			}
		case <-kill.C:
			if left := g.until(); !g.ended && left > 0 {
				kill.Reset(left) // the deadline moved at the last moment
				continue
			}
			g.ended, g.killAt = true, time.Now()
			g.signal(syscall.SIGKILL)
		}
	}
}

// pass sends the group a signal that this process got.
func (g *Group) pass(s os.Signal) {
	sig, ok := s.(syscall.Signal)
	if ok { // after a SIGTSTP this process notices that the group stops, and stops too
		g.signal(sig)
	}
}

// signal sends a signal to the whole group. After SIGTERM and SIGHUP it continues stopped processes, so that
// they handle the signal.
func (g *Group) signal(sig syscall.Signal) {
	_ = syscall.Kill(-g.pgid, sig)
	if sig == syscall.SIGTERM || sig == syscall.SIGHUP {
		_ = syscall.Kill(-g.pgid, syscall.SIGCONT)
	}
}

// result ends the rest of the group, and returns how the command ended. It reaps the first process last,
// because the group's number cannot be reused before that.
func (g *Group) result() Result {
	if g.ended {
		g.restDies(g.killAt)
	} else {
		g.endRest()
	}
	g.kill()
	status := g.leader.reap()
	reaped(g.pgid)
	killed := g.close()
	if status.Signaled() {
		return Result{Code: 128 + int(status.Signal()), Ended: g.ended || killed}
	}
	return Result{Code: status.ExitStatus(), Ended: g.ended || killed}
}

// endRest ends the remaining processes of the group, so that none outlives the lock. They may first end
// by themselves; then they get SIGTERM.
func (g *Group) endRest() {
	if g.restDies(time.Now().Add(straggle)) {
		return
	}
	g.opts.Say("the command has ended; the processes that it left running are ended, too")
	g.signal(syscall.SIGTERM)
	g.restDies(time.Now().Add(g.opts.Grace))
}

// kill kills the group, and waits until no process of it is alive.
func (g *Group) kill() {
	for pause, killed := look, time.Now(); g.leader.othersAlive(); pause = min(2*pause, lookMost) {
		g.signal(syscall.SIGKILL)
		time.Sleep(pause)
		if time.Since(killed) > stubborn {
			g.opts.Say(fmt.Sprintf("processes of group %d survived SIGKILL", g.pgid))
			return
		}
	}
}

// restDies reports whether the rest of the group has died by end or by the deadline.
func (g *Group) restDies(end time.Time) bool {
	for pause := look; g.leader.othersAlive(); pause = min(2*pause, lookMost) {
		left := min(time.Until(end), g.until())
		if left <= 0 {
			return false
		}
		time.Sleep(min(pause, left))
	}
	return true
}

// close ends the watchdog, and returns whether the watchdog killed the group.
func (g *Group) close() (killed bool) {
	killed = g.watchdog.dismiss()
	g.tty.close(g.pgid)
	signal.Stop(g.signals)
	return killed
}

// stopped stops this process, too, after the command was stopped, as a shell's job does, so that the
// shell gets its terminal back.
func (g *Group) stopped(by syscall.Signal) {
	if g.tty == nil || by == syscall.SIGSTOP {
		return // by kill -STOP: whoever sent it continues the command, and the lease is extended meanwhile
	}
	if (by == syscall.SIGTTIN || by == syscall.SIGTTOU) && g.tty.ours() {
		g.tty.give(g.pgid) // the command needs the terminal, and may have it
	} else {
		g.suspend()
	}
	_ = syscall.Kill(-g.pgid, syscall.SIGCONT)
}

// suspend stops this process and the others of its job until it is continued. Meanwhile the lease is not
// extended, and the watchdog enforces the deadline.
func (g *Group) suspend() {
	if orphaned() {
		return // no shell would continue this process
	}
	hadTerminal := g.tty.takeBack(g.pgid)
	g.opts.Say(fmt.Sprintf("suspended: the lease is not extended, and the command is killed in %s unless it continues before that",
		max(0, g.until()).Round(time.Second)))
	// Not SIGTSTP: after Go has caught it once, its default action cannot be restored.
	_ = syscall.Kill(0, syscall.SIGSTOP)
	g.awaitContinue()
	if hadTerminal && g.tty.ours() {
		g.tty.give(g.pgid)
	}
	_ = syscall.Kill(-g.pgid, syscall.SIGCONT)
}

// awaitContinue returns after this process was continued, or was not stopped at all.
func (g *Group) awaitContinue() {
	const soon = time.Second // the time in which the stop should happen; the clock continues during the stop
	notStopped := time.NewTimer(soon)
	defer notStopped.Stop()
	for {
		select {
		case s := <-g.signals:
			if s == syscall.SIGCONT {
				return
			}
			g.pass(s)
		case <-notStopped.C:
			return
		}
	}
}
