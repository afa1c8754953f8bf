//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package supervise

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the one that controls this process. A nil terminal does nothing.
type terminal struct {
	file  *os.File
	modes *unix.Termios
}

// openTerminal returns nil if there is none.
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

// ours says whether this process's group is in the foreground.
func (t *terminal) ours() bool { return t != nil && t.foreground() == syscall.Getpgrp() }

func (t *terminal) foreground() int {
	pgid, err := unix.IoctlGetInt(t.fd(), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return pgid
}

// give puts a group into the foreground. To do that from the background is a
// reason to be stopped, unless the signal is ignored.
func (t *terminal) give(pgid int) {
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	_ = unix.IoctlSetPointerInt(t.fd(), unix.TIOCSPGRP, pgid) // else the terminal has gone
}

// takeBack puts this process's group into the foreground if the other group is
// there.
func (t *terminal) takeBack(from int) bool {
	if t == nil || from == 0 || t.foreground() != from {
		return false
	}
	t.give(syscall.Getpgrp())
	return true
}

// close takes the terminal back, and undoes what a program that was killed may
// have done to it.
func (t *terminal) close(pgid int) {
	if t == nil {
		return
	}
	if t.takeBack(pgid) {
		_ = unix.IoctlSetTermios(t.fd(), setModes, t.modes) // else it has gone
	}
	_ = t.file.Close()
}

// IsTerminal says whether a file is a terminal.
func IsTerminal(file *os.File) bool {
	if file == nil {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), getModes)
	return err == nil
}

// orphaned says that no shell would continue this process if it stopped.
func orphaned() bool {
	own, err := unix.Getsid(0)
	parents, errParent := unix.Getsid(os.Getppid())
	return err != nil || errParent != nil || own != parents
}
