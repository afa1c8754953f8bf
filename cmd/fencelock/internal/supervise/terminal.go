//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package supervise

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal of this process. The methods of a nil terminal do nothing.
type terminal struct {
	file  *os.File
	modes *unix.Termios
}

// openTerminal returns nil if the process has no terminal.
func openTerminal() *terminal {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	t := &terminal{file: file}
	if t.modes, err = unix.IoctlGetTermios(t.fd(), getModes); err != nil {
		_ = file.Close()
		return nil
	}
	return t
}

func (t *terminal) fd() int { return int(t.file.Fd()) }

// ours reports whether this process's group is in the foreground.
func (t *terminal) ours() bool { return t != nil && t.foreground() == syscall.Getpgrp() }

func (t *terminal) foreground() int {
	pgid, err := unix.IoctlGetInt(t.fd(), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return pgid
}

// give puts a group into the foreground. The kernel stops a background process that does this, unless the
// process ignores SIGTTOU.
func (t *terminal) give(pgid int) {
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	_ = unix.IoctlSetPointerInt(t.fd(), unix.TIOCSPGRP, pgid) // an error means that the terminal is gone
}

// takeBack puts this process's group into the foreground, if the group from is in the foreground now.
func (t *terminal) takeBack(from int) bool {
	if t == nil || from == 0 || t.foreground() != from {
		return false
	}
	t.give(syscall.Getpgrp())
	return true
}

// close takes the terminal back, and restores the modes that a killed program may have changed.
func (t *terminal) close(pgid int) {
	if t == nil {
		return
	}
	if t.takeBack(pgid) {
		_ = unix.IoctlSetTermios(t.fd(), setModes, t.modes) // an error means that the terminal is gone
	}
	_ = t.file.Close()
}

// IsTerminal reports whether a file is a terminal.
func IsTerminal(file *os.File) bool {
	if file == nil {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), getModes)
	return err == nil
}

// orphaned reports whether no shell would continue this process if it stopped.
func orphaned() bool {
	own, err := unix.Getsid(0)
	parents, errParent := unix.Getsid(os.Getppid())
	return err != nil || errParent != nil || own != parents
}
