//go:build !linux && !darwin && !freebsd && !netbsd && !openbsd && !dragonfly

package demo

import (
	"context"
	"errors"
	"io"
	"os/exec"
)

var errNoSignals = errors.New("the demonstration stops processes with SIGSTOP, which this system has not got")

// child is a process that cannot be had here.
type child struct {
	pid    int
	stdout io.ReadCloser
	stderr *lastWords
	gone   chan struct{}
}

func startChild(string, *exec.Cmd, []byte) (*child, error) { return nil, errNoSignals }

func (*child) stop(context.Context) error      { return errNoSignals }
func (*child) resume(context.Context) error    { return errNoSignals }
func (*child) failure() error                  { return errNoSignals }
func (*child) succeeded(context.Context) error { return errNoSignals }
func (*child) end()                            {}
