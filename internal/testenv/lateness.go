package testenv

import (
	"sync/atomic"
	"testing"
	"time"
)

// Lateness measures how late the machine wakes this process up. A test that measures time allows for it: a
// delay up to the lateness may be the machine's fault.
type Lateness struct{ longest atomic.Int64 }

// MeasureLateness measures until the test ends.
func MeasureLateness(t testing.TB) *Lateness {
	t.Helper()
	const every = 10 * time.Millisecond
	l := &Lateness{}
	stop, stopped := make(chan struct{}), make(chan struct{})
	tick := time.NewTicker(every)
	go func() {
		defer close(stopped)
		for due := time.Now().Add(every); ; due = time.Now().Add(every) {
			select {
			case <-stop:
				return
			case <-tick.C:
				l.longest.Store(max(l.longest.Load(), int64(time.Since(due))))
			}
		}
	}()
	t.Cleanup(func() {
		tick.Stop()
		close(stop)
		<-stopped
	})
	return l
}

// Longest returns the longest lateness so far.
func (l *Lateness) Longest() time.Duration { return time.Duration(l.longest.Load()) }
