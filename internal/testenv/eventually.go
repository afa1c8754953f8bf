package testenv

import (
	"fmt"
	"testing"
	"time"
)

// The shortest and the longest pause of a poll between two looks.
const (
	shortestPause = 2 * time.Millisecond
	longestPause  = 50 * time.Millisecond
)

// PollPause returns how long a poll pauses before its next look: a twentieth of the time that it has waited, within
// bounds. So a short wait ends soon, and a long one leaves the processor to what it waits for.
func PollPause(waited time.Duration) time.Duration {
	return min(max(waited/20, shortestPause), longestPause)
}

// Eventually calls check until it returns nil. If that does not happen within the given time, the test fails
// with check's last error. Use it instead of a sleep.
func Eventually(t testing.TB, within time.Duration, check func() error) {
	t.Helper()
	if err := poll(within, check); err != nil {
		t.Fatal(err)
	}
}

// poll calls check until it returns nil or the time is over; check runs at
// least once, and the error names the time and wraps check's last error.
func poll(within time.Duration, check func() error) error {
	begun, deadline := time.Now(), time.NewTimer(within)
	defer deadline.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(PollPause(time.Since(begun))):
		case <-deadline.C:
			return fmt.Errorf("not within %v: %w", within, err)
		}
	}
}
