// Package supervise runs a command in a process group of its own, and ends the
// whole group before a deadline that is moved on while all is well: that of a
// lease.
//
// Two processes hold the deadline: the one that calls Start, and a watchdog, a
// second process in a session of its own, which reads every new deadline
// from a pipe. The watchdog kills the group when the deadline comes, and ends
// it at once when the pipe closes, because the first process was killed. So a
// supervisor that is stopped, starved or killed does not leave the command
// running beyond the deadline.
//
// Deadlines are on the monotonic clock, which all processes of a machine share.
//
// Not promised: the death of processes that left the group (setsid, a daemon, an
// interactive shell's jobs) or changed to another user; of a process that the kernel
// does not let die (a hung file system); anything while both the supervisor and the
// watchdog are stopped, or the whole machine is suspended.
//
// Libraries that run commands end them when the first process says so; none has a
// second process that does it when the first is stopped or killed.
package supervise

import (
	"errors"
	"os"
	"time"
)

// ErrUnsupported: the system has no process groups.
var ErrUnsupported = errors.New("running a command under a lock needs process groups, which this system does not have")

// Options say what to run.
type Options struct {
	Path                  string   // of the program
	Args                  []string // its name included
	Env                   []string
	Stdin, Stdout, Stderr *os.File
	// Watchdog is the command line of a process that calls Watch with its
	// standard input.
	Watchdog []string
	// Grace is the time between SIGTERM and SIGKILL, unless the deadline comes before.
	Grace time.Duration
	// Deadline is when the group must be killed at the latest; see Group.Extend.
	Deadline time.Time
	// Say tells whoever runs the command what happens to it.
	Say func(text string)
}

// Result is how the command ended.
type Result struct {
	// Code is the command's exit code, or 128 and the number of the signal that killed it.
	Code int
	// Ended says that the command was made to end: the lease was lost, or the
	// deadline came.
	Ended bool
}

// straggle is how long what is left of a group may take to end by itself after
// its first process did, before it gets SIGTERM.
const straggle = time.Second

// The pauses between looks at whether a group has died.
const (
	look     = 2 * time.Millisecond
	lookMost = 50 * time.Millisecond
)

// stubborn is how long processes that were killed are waited for.
const stubborn = 10 * time.Second
