package conformance

import (
	"sync"
	"time"
)

// lateness watches how late this process runs when it wants to: on a busy machine a
// right client is late, too, and its scenario has to be played again.
type lateness struct {
	stop chan struct{}
	done sync.WaitGroup
	mu   sync.Mutex
	late []moment
}

type moment struct {
	at time.Time
	by time.Duration
}

const (
	tick = 5 * time.Millisecond
	// tooLate is how late this process may be in a scenario that judges a client wrong.
	tooLate = 15 * time.Millisecond
	// again is how often a scenario is played on a machine that is too busy.
	again = 6
)

func watchLateness() *lateness {
	l := &lateness{stop: make(chan struct{})}
	l.done.Go(l.run)
	return l
}

func (l *lateness) run() {
	for {
		due := time.Now().Add(tick)
		select {
		case <-l.stop:
			return
		case <-time.After(tick):
		}
		if by := time.Since(due); by > tooLate {
			l.mu.Lock()
			l.late = append(l.late, moment{time.Now(), by})
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
	return len(l.late) > 0 && l.late[len(l.late)-1].at.After(begun)
}
