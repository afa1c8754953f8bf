// Package cpu reads from the kernel how much processor time and memory
// processes use. It knows Linux only.
package cpu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of /proc/stat: Linux reports hundredths of a second to user space on every
// architecture that Go supports.
const tick = 10 * time.Millisecond

// Self is the processor time that this process has used.
func Self() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// Process returns the processor time of a process's running threads, in nanoseconds. It returns 0
// for a process that has ended.
func Process(pid int) time.Duration {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0
	}
	var total time.Duration
	for _, task := range tasks {
		total += taskTime(task)
	}
	return total
}

// taskTime reads the first number of a schedstat: nanoseconds on a processor.
func taskTime(path string) time.Duration {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(ns)
}

// Parent returns the parent of a process.
func Parent(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseParent(text)
}

// parseParent reads the parent from a stat file. The program's name precedes it in parentheses,
// and may itself contain parentheses and spaces.
func parseParent(stat []byte) (int, error) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, errors.New("unreadable stat")
	}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 2 {
		return 0, errors.New("unreadable stat")
	}
	return strconv.Atoi(fields[1])
}

// Family returns a process and its children.
func Family(pid int) []int {
	family := []int{pid}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return family
	}
	for _, dir := range dirs {
		child, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if parent, err := Parent(child); err == nil && parent == pid {
			family = append(family, child)
		}
	}
	return family
}

// Machine returns the time for which all processors together were busy, including the time that a
// hypervisor took away.
func Machine() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return parseMachine(line)
}

// parseMachine adds up user, nice, system, irq, softirq and steal.
func parseMachine(line string) (time.Duration, error) {
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("unreadable line of /proc/stat: %q", line)
	}
	var busy time.Duration
	for _, i := range []int{1, 2, 3, 6, 7, 8} {
		ticks, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, err
		}
		busy += time.Duration(ticks) * tick
	}
	return busy, nil
}
