package testenv

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// dieWithParent makes the kernel send sig to the child when the test process dies.
func dieWithParent(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// stopped returns nil if the process is stopped or has ended.
func stopped(pid int) error {
	state, _, err := procStat(pid)
	if err != nil {
		return err
	}
	if state == 'Z' {
		return nil // it ended before the signal came
	}
	if state != 'T' {
		return fmt.Errorf("process %d is in state %c, not stopped", pid, state)
	}
	return nil
}

// childrenOf lists the processes whose parent is pid.
func childrenOf(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*")
	var children []int
	for _, dir := range stats {
		child, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if _, parent, err := procStat(child); err == nil && parent == pid {
			children = append(children, child)
		}
	}
	return children
}

// procStat reads a process's state and parent. The program's name, in
// parentheses before them, may itself contain anything.
func procStat(pid int) (state byte, parent int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, syscall.ESRCH
	}
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return 0, 0, fmt.Errorf("process %d: unreadable stat %q", pid, b)
	}
	_, err = fmt.Sscanf(string(b[end+1:]), " %c %d", &state, &parent)
	return state, parent, err
}
