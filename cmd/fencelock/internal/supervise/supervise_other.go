//go:build !linux && !darwin && !freebsd && !netbsd && !openbsd && !dragonfly

package supervise

import (
	"errors"
	"io"
	"os"
	"time"
)

// IsTerminal reports whether a file may be a terminal.
func IsTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Group is a running command. This system does not support it.
type Group struct{}

// Start always fails here.
func Start(Options) (*Group, error) {
	return nil, errors.New("running a command under a lock needs process groups, which this system does not have")
}

// Extend does nothing here.
func (*Group) Extend(time.Time) {}

// Run does nothing here.
func (*Group) Run(<-chan struct{}) Result { return Result{} }

// Watch does nothing here.
func Watch(io.Reader) (code int) { return 1 }
