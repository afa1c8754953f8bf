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

// lateness measures how late this process is, because on a busy machine a correct client is late, too.
// The process is late when a timer fires late, or when a byte takes long to another goroutine and back
// over a connection like those of the requests.
type lateness struct {
	echo net.Conn
	stop chan struct{}
	done sync.WaitGroup

	mu   sync.Mutex
	seen []moment // every time it was late
}

// moment records that this process was late at a time, and by how much.
type moment struct {
	at time.Time
	by time.Duration
}

// tick is the interval between two measurements.
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

// since returns the largest lateness of this process since begun.
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

// waits returns, for each thread of a process, how long the thread was ready to run but had no
// processor, since it began. Linux counts this in the second field of /proc/PID/task/TID/schedstat; on
// other systems the map is empty.
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

// waited returns how long the threads of a process have waited for a processor since an earlier reading.
// total is the sum over all threads, by which the process may have been late; most is the longest wait
// of one thread. A thread that has ended since is not counted.
func waited(pid int, before map[string]time.Duration) (total, most time.Duration) {
	for thread, now := range waits(pid) {
		since := now - before[thread]
		total, most = total+since, max(most, since)
	}
	return total, most
}
