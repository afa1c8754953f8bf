package rowlog

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// A load continues as long as it reads more. It ends when nothing comes, when it fails, or at the deadline of the
// start.
func TestPatience(t *testing.T) {
	const patience = 10*time.Second + time.Millisecond // does not end as an entry comes
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		every, until time.Duration // an entry comes, until none does any more
		failsAfter   time.Duration
		deadline     time.Duration
		wants        error
		took         time.Duration
	}{
		"an entry a second for five minutes":       {every: time.Second, until: time.Hour, took: 300 * time.Second},
		"nothing comes":                            {every: time.Hour, wants: context.DeadlineExceeded, took: 10 * time.Second},
		"nothing comes any more":                   {every: time.Second, until: 25 * time.Second, wants: context.DeadlineExceeded, took: 40 * time.Second},
		"it fails":                                 {every: time.Second, until: time.Hour, failsAfter: 25 * time.Second, wants: broken, took: 25 * time.Second},
		"an entry a second, and a start's own end": {every: time.Second, until: time.Hour, deadline: 35 * time.Second, wants: context.DeadlineExceeded, took: 35 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, began, entries := t.Context(), time.Now(), 0
				next := began.Add(c.every)
				if c.deadline > 0 {
					limited, cancel := context.WithTimeout(ctx, c.deadline)
					defer cancel()
					ctx = limited
				}
				load := func(ctx context.Context) error {
					for entries < 300 {
						select {
						case <-ctx.Done():
							return ctx.Err()
						case <-time.After(time.Until(next)):
						}
						next = next.Add(c.every)
						passed := time.Since(began)
						switch {
						case c.failsAfter > 0 && passed >= c.failsAfter:
							return broken
						case passed <= c.until:
							entries++
						}
					}
					return nil
				}
				err := Patiently(ctx, patience, slog.New(slog.DiscardHandler), func() (int, int) { return entries, 300 }, load)
				if took := time.Since(began); !errors.Is(err, c.wants) || took.Round(time.Second) != c.took {
					t.Errorf("%v after %v, want %v after %v", err, took, c.wants, c.took)
				}
			})
		})
	}
}
