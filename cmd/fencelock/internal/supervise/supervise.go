// Package supervise runs a command in its own process group, and ends the whole group before a deadline.
// The deadline is the end of a lease, and moves while the lease is extended.
//
// Two processes enforce the deadline: the process that calls Start, and a watchdog in its own session.
// The watchdog reads every new deadline from a pipe. It kills the group when the deadline comes, and ends
// the group at once when the pipe closes, because that means that the first process was killed. So even
// if the supervisor is stopped, starved or killed, the command does not run beyond the deadline.
//
// Deadlines are on the monotonic clock, which all processes of a machine share.
//
// Not promised: the death of processes that left the group (by setsid, as a daemon, as an interactive
// shell's jobs), that changed to another user, or that the kernel cannot kill (on a hung file system).
// Nothing is promised while both supervisor and watchdog are stopped, or the whole machine is suspended.
//
// Libraries that run commands end them only from the first process. None of them has a second process that
// takes over if the first is stopped or killed.
package supervise

import (
	"os"
	"time"
)

// Options describe the command to run.
type Options struct {
	Path                  string   // the program's path
	Args                  []string // including its name
	Env                   []string
	Stdin, Stdout, Stderr *os.File
	// Watchdog is the command line of a process that calls Watch with its standard input.
	Watchdog []string
	// Grace is the time between SIGTERM and SIGKILL, unless the deadline comes first.
	Grace time.Duration
	// Deadline is when the group must be killed at the latest; Group.Extend moves it.
	Deadline time.Time
	// Say shows the user a message about the command.
	Say func(text string)
}

// Result is how the command ended.
type Result struct {
	// Code is the command's exit code, or 128 plus the number of the signal that killed it.
	Code int
	// Ended says that this process ended the command, because the lease was lost or the deadline came.
	Ended bool
}

// straggle is how long the rest of a group may take to end by itself after its first process has ended.
// Then the rest gets SIGTERM.
const straggle = time.Second

// The pauses between two checks whether a group has died.
const (
	look     = 2 * time.Millisecond
	lookMost = 50 * time.Millisecond
)

// stubborn is how long to wait for killed processes to die.
const stubborn = 10 * time.Second
