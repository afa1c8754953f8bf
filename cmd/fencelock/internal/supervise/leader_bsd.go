//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package supervise

import (
	"errors"
	"syscall"
)

// dieWithParent can do nothing where the kernel has no parent-death signal.
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
			default: // the ones before are yet to be read
			}
		}
	}
}

// reap returns how the process ended; only after gone.
func (l *leader) reap() syscall.WaitStatus { return l.status }

// othersAlive says whether a process of the group is alive; only after gone.
func (l *leader) othersAlive() bool { return groupAlive(l.pid) }

func groupAlive(pgid int) bool { return syscall.Kill(-pgid, 0) == nil }
