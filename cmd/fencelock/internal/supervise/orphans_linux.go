package supervise

import (
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
)

// children are the processes that this process has started, and for which os/exec and leader wait. If
// this process is a container's first process, it also inherits the orphans of all other processes, which
// stay zombies until it waits for them. It is one variable because a process has one set of children.
//
//nolint:gochecknoglobals // see above
var children = struct {
	sync.Mutex

	own     map[int]bool // children that were not waited for yet
	reaping sync.Once
}{own: map[int]bool{}}

// startChild starts a command. Whoever waits for the command must then call reaped. During the start,
// reapOrphans does not look for orphans, because the child may end before its number is known.
func startChild(cmd *exec.Cmd) error {
	if os.Getpid() == 1 {
		children.reaping.Do(func() { go reapOrphans() })
	}
	children.Lock()
	defer children.Unlock()
	err := cmd.Start()
	if err == nil {
		children.own[cmd.Process.Pid] = true
	}
	return err
}

// reaped records that a child of startChild was waited for, because an orphan may get its number now.
func reaped(pid int) {
	children.Lock()
	defer children.Unlock()
	delete(children.own, pid)
}

// reapOrphans waits for orphans that end, as long as this process lives.
func reapOrphans() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	for ; ; <-ended {
		_, _ = eachProcess(func(pid string, fields []string) bool {
			if fields[statState] == "Z" && fields[statParent] == "1" {
				reapOrphan(pid)
			}
			return false
		})
	}
}

func reapOrphan(name string) {
	children.Lock()
	defer children.Unlock()
	if pid, err := strconv.Atoi(name); err == nil && !children.own[pid] {
		_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil) // no other goroutine waits for this child
	}
}
