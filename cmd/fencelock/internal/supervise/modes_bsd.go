//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package supervise

import "golang.org/x/sys/unix"

// The requests that read and set a terminal's modes.
const (
	getModes = unix.TIOCGETA
	setModes = unix.TIOCSETAW
)
