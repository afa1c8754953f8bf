package testenv

import (
	"bufio"
	"io"
)

// Lines reads r line by line, but for a last one that is cut off before its end,
// which is what a stream leaves that is ended while it is written to.
func Lines(r io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(r)
	lines.Split(func(data []byte, _ bool) (int, []byte, error) { return bufio.ScanLines(data, false) })
	return lines
}
