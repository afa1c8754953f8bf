package redisnode_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/sets"
)

func TestEndOfTellsAnExpiryFromARelease(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 3, func(c *sets.Config) { c.MaxTTL, c.NodeTimeout = time.Minute, 5*time.Second }) // a busy machine may take its time
	q.awaitVoting(t, 3)
	end := func(lease lockcore.Lease, want lockcore.End) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() error { // a node that answers late makes it unknown, and never another end
			got, err := q.EndOf(t.Context(), lease.ID)
			if err == nil && got != want {
				err = fmt.Errorf("%s: end %d, want %d", lease.Resource, got, want)
				if got != lockcore.EndUnknown {
					t.Fatal(err)
				}
			}
			return err
		})
	}
	brief := func(resource string) (lease lockcore.Lease) {
		t.Helper()
		tries := 0
		testenv.Eventually(t, 20*time.Second, func() (err error) {
			tries++ // another resource each: the end of a try that failed would be in its counters
			lease, err = q.Acquire(t.Context(), lockcore.Request{Resource: fmt.Sprint(resource, tries), TTL: 2 * time.Second})
			return err
		})
		return lease
	}
	over := func(resource string) {
		t.Helper()
		testenv.Eventually(t, 10*time.Second, func() error {
			state, err := q.Inspect(t.Context(), resource)
			if err == nil && state.Held {
				err = errors.New("still held")
			}
			return err
		})
	}
	held := q.take(t, "held")
	end(held, lockcore.EndNone)
	q.give(t, held)
	end(held, lockcore.EndUnknown)

	expired := brief("expired")
	over(expired.Resource)
	end(expired, lockcore.EndExpired)

	taken := brief("taken")
	over(taken.Resource)
	next := q.take(t, taken.Resource)
	end(taken, lockcore.EndExpired)
	q.give(t, next)
	end(taken, lockcore.EndUnknown) // the node no longer knows

	given := q.take(t, "given")
	q.give(t, given)
	q.take(t, "given")
	end(given, lockcore.EndUnknown)

	broken := q.take(t, "broken")
	if err := q.Break(t.Context(), "broken", 0); err != nil {
		t.Fatal(err)
	}
	end(broken, lockcore.EndUnknown)
	if _, err := q.EndOf(t.Context(), "nonsense"); !errors.Is(err, lockcore.ErrNotHeld) {
		t.Errorf("nonsense: %v", err)
	}
	opened, err := q.Open(t.Context(), broken.ID)
	if err != nil {
		t.Fatal(err)
	}
	if terms := opened.Terms(); !slices.Equal(terms.Parts, []lockcore.LeasePart{{Resource: "broken", Token: broken.Token}}) || time.Since(terms.Granted) > time.Minute {
		t.Errorf("it says %+v", terms)
	}
}
