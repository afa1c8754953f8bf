package conformance

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// lateness watches how late this process is: on a busy machine a right client is late,
// too, and its scenario has to be played again. It is late if it wakes late, or if a byte
// takes long to another goroutine and back, by the way that requests take.
type lateness struct {
	echo net.Conn
	stop chan struct{}
	done sync.WaitGroup
	mu   sync.Mutex
	last time.Time // when it was late
}

const (
	tick = 5 * time.Millisecond
	// tooLate is how late this process may be in a scenario that judges a client wrong.
	tooLate = 15 * time.Millisecond
	// calmsDown is for how long a scenario is played on a machine that is too busy.
	calmsDown = 2 * time.Minute
)

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
		if err != nil || time.Since(due) > tooLate {
			l.mu.Lock()
			l.last = time.Now()
			l.mu.Unlock()
		}
	}
}

func (l *lateness) end() {
	close(l.stop)
	l.done.Wait()
}

// since says whether this process was late after a moment.
func (l *lateness) since(begun time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last.After(begun)
}
