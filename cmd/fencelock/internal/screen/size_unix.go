//go:build unix

package screen

import (
	"os"

	"golang.org/x/sys/unix"
)

// Size is how many cells wide and how many lines high a terminal is; 80 and 24 where it
// does not say.
func Size(terminal *os.File) (width, height int) {
	size, err := unix.IoctlGetWinsize(int(terminal.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 || size.Row == 0 {
		return usualWidth, usualHeight
	}
	return int(size.Col), int(size.Row)
}
