package conformance

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// lateness watches how late this process is: on a busy machine a right client is late,
// too. It is late if it wakes late, or if a byte takes long to another goroutine and back,
// by the way that requests take.
type lateness struct {
	echo net.Conn
	stop chan struct{}
	done sync.WaitGroup

	mu   sync.Mutex
	seen []moment // when it was late
}

// moment is one at which this process was late.
type moment struct {
	at time.Time
	by time.Duration
}

// tick is how often it looks.
const tick = 5 * time.Millisecond

func watchLateness() (*lateness, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it never waits
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close() }()
	echo, err := net.Dial("tcp", listener.Addr().String()) //nolint:noctx // to itself
	if err != nil {
		return nil, err
	}
	far, err := listener.Accept()
	if err != nil {
		return nil, errors.Join(err, echo.Close())
	}
	l := &lateness{echo: echo, stop: make(chan struct{})}
	l.done.Go(func() {
		_, _ = io.Copy(far, far) // until the other side is closed
		_ = far.Close()
	})
	l.done.Go(l.run)
	return l, nil
}

func (l *lateness) run() {
	defer func() { _ = l.echo.Close() }()
	for {
		due := time.Now().Add(tick)
		select {
		case <-l.stop:
			return
		case <-time.After(tick):
		}
		_, err := l.echo.Write([]byte{0})
		if err == nil {
			_, err = l.echo.Read(make([]byte, 1))
		}
		if err != nil {
			return
		}
		now := time.Now()
		if by := now.Sub(due); by > tick {
			l.mu.Lock()
			l.seen = append(l.seen, moment{now, by})
			l.mu.Unlock()
		}
	}
}

func (l *lateness) end() {
	close(l.stop)
	l.done.Wait()
}

// since returns by how much this process was late at most after a moment.
func (l *lateness) since(begun time.Time) (most time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range slices.Backward(l.seen) {
		if m.at.Before(begun) {
			break
		}
		most = max(most, m.by)
	}
	return most
}

// waits are how long each thread of a process could have run and got no processor, since it began:
// what Linux counts in the second field of /proc/PID/task/TID/schedstat. Elsewhere there are none.
func waits(pid int) map[string]time.Duration {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is well-formed
	found := make(map[string]time.Duration, len(files))
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil { // the thread has ended
			continue
		}
		if fields := strings.Fields(string(raw)); len(fields) == 3 {
			ns, _ := strconv.ParseInt(fields[1], 10, 64) // 0 if it is not a number
			found[file] = time.Duration(ns)
		}
	}
	return found
}

// waited returns for how long the threads of a process, all together, have waited for a processor since
// an earlier reading: by so much the process may have been late. What a thread that has ended waited is
// not in it.
func waited(pid int, before map[string]time.Duration) (total time.Duration) {
	for thread, now := range waits(pid) {
		total += now - before[thread]
	}
	return total
}
