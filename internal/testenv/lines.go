package testenv

import (
	"bufio"
	"io"
)

// Lines reads r line by line. It drops a last line without a line break: such a line was cut off when the
// stream ended while it was written.
func Lines(r io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(r)
	lines.Split(func(data []byte, _ bool) (int, []byte, error) { return bufio.ScanLines(data, false) })
	return lines
}
