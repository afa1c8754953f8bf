//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package supervise

import "golang.org/x/sys/unix"

// How a terminal's modes are read and set.
const (
	getModes = unix.TIOCGETA
	setModes = unix.TIOCSETAW
)
