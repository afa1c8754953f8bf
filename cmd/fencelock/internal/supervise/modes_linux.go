package supervise

import "golang.org/x/sys/unix"

// How a terminal's modes are read and set.
const (
	getModes = unix.TCGETS
	setModes = unix.TCSETSW
)
