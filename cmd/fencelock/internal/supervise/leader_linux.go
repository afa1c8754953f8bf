package supervise

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent has the kernel kill the first process when the supervisor dies,
// should the watchdog be gone as well. It is tied to the thread that starts the
// process; Go's threads live as long as the process, unless one is locked.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// unknownEnd is the exit code 255, for a process that was reaped elsewhere.
const unknownEnd syscall.WaitStatus = 0xff00

// leader is the first process of a group. It is not reaped before the group has
// ended, so that no other process gets its number.
type leader struct {
	pid    int
	stops  chan syscall.Signal
	gone   chan struct{} // closed when it has ended
	reaped bool
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
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, l.pid, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil)
		const stopped, trapped = 5, 4 // CLD_STOPPED, CLD_TRAPPED
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || info.Code != stopped && info.Code != trapped:
			return
		case l.takeStop():
			return
		}
	}
}

// takeStop consumes the stop that was seen. It may meanwhile have become an end:
// then the process is reaped.
func (l *leader) takeStop() (ended bool) {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(l.pid, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
	switch {
	case err != nil || pid == 0:
	case status.Stopped():
		select {
		case l.stops <- status.StopSignal():
		default: // the ones before are yet to be read
		}
	default:
		l.reaped, l.status = true, status
		return true
	}
	return false
}

// reap returns how the process ended; only after gone.
func (l *leader) reap() syscall.WaitStatus {
	for !l.reaped {
		_, err := syscall.Wait4(l.pid, &l.status, 0, nil)
		l.reaped = !errors.Is(err, syscall.EINTR)
		if err != nil {
			l.status = unknownEnd
		}
	}
	return l.status
}

// othersAlive says whether a process of the group is alive; only after gone.
func (l *leader) othersAlive() bool { return groupAlive(l.pid) }

// groupAlive looks through /proc: for kill(2) a zombie is as good as a process.
func groupAlive(pgid int) bool {
	dir, err := os.Open("/proc")
	if err != nil {
		return syscall.Kill(-pgid, 0) == nil
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return syscall.Kill(-pgid, 0) == nil
	}
	for _, name := range names {
		if name[0] >= '0' && name[0] <= '9' && memberAlive(name, pgid) {
			return true
		}
	}
	return false
}

// memberAlive reads /proc/<pid>/stat: after the name in parentheses come the
// state, the parent, the group and more.
func memberAlive(pid string, pgid int) bool {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false // it has gone
	}
	rest := string(text[bytes.LastIndexByte(text, ')')+1:])
	const state, group, threads = 0, 2, 17
	fields := strings.Fields(rest)
	if len(fields) <= threads || fields[group] != strconv.Itoa(pgid) {
		return false
	}
	// A process whose first thread has ended looks like a zombie.
	dead := fields[state] == "Z" || fields[state] == "X"
	return !dead || fields[threads] != "1" && fields[threads] != "0"
}
