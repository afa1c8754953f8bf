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

// dieWithParent makes the kernel kill the command's first process when the supervisor dies, in case the
// watchdog is dead, too. The signal is tied to the thread that starts the process. Go's threads live as
// long as the process, unless a goroutine has locked its thread.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// unknownEnd is the exit code 255, for a process that was reaped elsewhere.
const unknownEnd syscall.WaitStatus = 0xff00

// leader is the first process of a group. It is not reaped before the group has ended, so that no other
// process gets its number.
type leader struct {
	pid    int
	stops  chan syscall.Signal
	gone   chan struct{} // closed when the process has ended
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

// takeStop consumes the stop that was seen. If the process has ended in the meantime, takeStop reaps it
// and returns true.
func (l *leader) takeStop() (ended bool) {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(l.pid, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
	switch {
	case err != nil || pid == 0:
	case status.Stopped():
		select {
		case l.stops <- status.StopSignal():
		default: // the reader is still busy with earlier stops
		}
	default:
		l.reaped, l.status = true, status
		return true
	}
	return false
}

// reap returns how the process ended. Call it only after gone is closed.
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

// othersAlive reports whether any process of the group is alive. Call it only after gone is closed.
func (l *leader) othersAlive() bool { return groupAlive(l.pid) }

// groupAlive searches /proc, because kill(2) does not distinguish a zombie from a live process.
func groupAlive(pgid int) bool {
	alive, err := eachProcess(func(_ string, fields []string) bool {
		// A process whose first thread has ended looks like a zombie.
		dead := fields[statState] == "Z" || fields[statState] == "X"
		return fields[statGroup] == strconv.Itoa(pgid) && (!dead || fields[statThreads] != "1" && fields[statThreads] != "0")
	})
	if err != nil {
		return syscall.Kill(-pgid, 0) == nil
	}
	return alive
}

// Fields of /proc/<pid>/stat, after the name in parentheses.
const statState, statParent, statGroup, statThreads = 0, 1, 2, 17

// eachProcess calls found with the fields of every process, until found returns true.
func eachProcess(found func(pid string, fields []string) bool) (bool, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return false, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		text, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // the process has ended
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) > statThreads && found(name, fields) {
			return true, nil
		}
	}
	return false, nil
}
