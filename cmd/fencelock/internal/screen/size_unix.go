//go:build unix

package screen

import (
	"os"

	"golang.org/x/sys/unix"
)

// Size returns a terminal's width in cells and its height in lines; 80 and 24 if the terminal does not
// report them.
func Size(terminal *os.File) (width, height int) {
	size, err := unix.IoctlGetWinsize(int(terminal.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 || size.Row == 0 {
		return usualWidth, usualHeight
	}
	return int(size.Col), int(size.Row)
}
