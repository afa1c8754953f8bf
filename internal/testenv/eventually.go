package testenv

import (
	"fmt"
	"testing"
	"time"
)

// pollEvery is how long a poll pauses between two looks. Short, because
// tests wait on it often, but not so short that it starves the server.
const pollEvery = 5 * time.Millisecond

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
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return fmt.Errorf("not within %v: %w", within, err)
		}
	}
}
