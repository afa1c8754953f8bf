//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package supervise

import (
	"errors"
	"syscall"
)

// dieWithParent does nothing, because this kernel has no parent-death signal.
func dieWithParent(*syscall.SysProcAttr) {}

// leader is the first process of a group.
type leader struct {
	pid    int
	stops  chan syscall.Signal
	gone   chan struct{} // closed when it has ended, and is reaped
	status syscall.WaitStatus
}

func follow(pid int) *leader {
	l := &leader{pid: pid, stops: make(chan syscall.Signal, 16), gone: make(chan struct{})}
	go l.run()
	return l
}

func (l *leader) run() {
	defer close(l.gone)
	for {
		_, err := syscall.Wait4(l.pid, &l.status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil || !l.status.Stopped():
			return
		default:
			select {
			case l.stops <- l.status.StopSignal():
			default: // the reader is still busy with earlier stops
			}
		}
	}
}

// reap returns how the process ended. Call it only after gone is closed.
func (l *leader) reap() syscall.WaitStatus { return l.status }

// othersAlive reports whether any process of the group is alive. Call it only after gone is closed.
func (l *leader) othersAlive() bool { return groupAlive(l.pid) }

func groupAlive(pgid int) bool { return syscall.Kill(-pgid, 0) == nil }
