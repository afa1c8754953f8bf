package pgstore

import (
	"testing"
	"time"
)

// If a hundred servers each looked at four pages a second, Postgres would have no time for anything else. So a server
// sweeps slowly when nothing has ended.
func TestAServerSweepsSlowlyWhereNothingHasEnded(t *testing.T) {
	const page = 2000
	sweeping := sweeping{page: page, pause: 250 * time.Millisecond, rest: 2 * time.Second}
	last := sweeping.pause
	for _, step := range []struct {
		deleted int64
		want    time.Duration
	}{
		{0, 500 * time.Millisecond},
		{0, time.Second},
		{40, 2 * time.Second}, // one of fifty is too few
		{0, 2 * time.Second},
		{41, 250 * time.Millisecond},
		{2000, 250 * time.Millisecond},
		{3, 500 * time.Millisecond},
	} {
		if last = sweeping.after(last, step.deleted, page); last != step.want {
			t.Errorf("%s after a page with %d ended rows, want %s", last, step.deleted, step.want)
		}
	}
}
