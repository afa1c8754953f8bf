//go:build !linux

package testenv

import (
	"bufio"
	"bytes"
	"fmt"
	"os/exec"
	"syscall"
)

// dieWithParent does nothing, because the kernel has no parent-death signal. The reaper ends the child a
// moment later.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// stopped always returns nil: without /proc, the process counts as stopped when the signal is delivered.
func stopped(int) error { return nil }

// childrenOf lists the processes whose parent is pid.
func childrenOf(pid int) []int {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return nil
	}
	var children []int
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var child, parent int
		if _, err := fmt.Sscan(lines.Text(), &child, &parent); err == nil && parent == pid {
			children = append(children, child)
		}
	}
	return children
}
