// The worker reads counters of the Linux kernel.

package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// now returns the time of the machine's monotonic clock, in seconds.
func now() float64 {
	var at unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &at) // cannot fail: the clock exists
	return time.Duration(at.Nano()).Seconds()
}

// starved measures how long threads of this process were ready to run but got no processor, according to the
// kernel.
type starved struct {
	mu     sync.Mutex
	pieces []piece
	at     float64
	before map[string]float64 // by thread: how long it had waited for a processor at the last look
}

// piece is a short period. delay is the longest time that one thread waited for a processor in it.
type piece struct{ from, to, delay float64 }

const kept = 1000 // pieces that are kept

func (s *starved) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, delays, longest := now(), delays(), 0.0
	for thread, delay := range delays {
		if before, known := s.before[thread]; known {
			longest = max(longest, delay-before)
		}
	}
	if s.before != nil {
		s.pieces = append(s.pieces, piece{s.at, at, longest})
	}
	if len(s.pieces) > kept {
		s.pieces = s.pieces[1:]
	}
	s.at, s.before = at, delays
}

// within returns how long threads can have waited for a processor between two times.
func (s *starved) within(from, to float64) (sum float64) {
	s.look()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pieces {
		sum += max(0, min(p.delay, min(p.to, to)-max(p.from, from)))
	}
	return sum
}

func delays() map[string]float64 {
	delays := map[string]float64{}
	files, _ := filepath.Glob("/proc/self/task/*/schedstat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if fields := strings.Fields(string(text)); err == nil && len(fields) > 1 { // otherwise the thread has ended
			delay, _ := strconv.ParseInt(fields[1], 10, 64)
			delays[file] = time.Duration(delay).Seconds()
		}
	}
	return delays
}

func sockets() (n int) {
	files, _ := filepath.Glob("/proc/self/fd/*")
	for _, file := range files {
		if to, _ := os.Readlink(file); strings.HasPrefix(to, "socket") {
			n++
		}
	}
	return n
}

// leaks returns how many more goroutines and sockets there are than before. It gives them five seconds to
// end.
func leaks(before map[string]int) map[string]int {
	left := func() map[string]int {
		return map[string]int{"goroutines": runtime.NumGoroutine() - before["goroutines"], "sockets": sockets() - before["sockets"]}
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(step) {
		if l := left(); l["goroutines"] <= 0 && l["sockets"] <= 0 {
			break
		}
	}
	return left()
}
