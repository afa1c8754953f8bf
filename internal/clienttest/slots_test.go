package clienttest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/client"
)

// A semaphore: as many Dos run as there are slots, each with a slot of its own; the others
// wait.
func TestSlots(t *testing.T) {
	t.Parallel()
	const n, workers = 3, 9
	s := serve(t, newLocker(t))
	c := connect(t, s)
	var mu sync.Mutex
	running, most := map[int]string{}, 0
	var all sync.WaitGroup
	together := make(chan struct{}) // closed when as many run as may
	for range workers {
		all.Go(func() {
			err := c.Do(t.Context(), "jobs", func(_ context.Context, l *client.Lease) error {
				mu.Lock()
				if running[l.Slot()] != "" || !l.Token().Valid() {
					t.Errorf("slot %d twice, as %s and %s", l.Slot(), running[l.Slot()], l.Resource())
				}
				running[l.Slot()] = l.Resource()
				if most = max(most, len(running)); len(running) == n {
					select {
					case <-together:
					default:
						close(together)
					}
				}
				mu.Unlock()
				select {
				case <-together:
				case <-time.After(short):
				}
				mu.Lock()
				defer mu.Unlock()
				delete(running, l.Slot())
				return nil
			}, client.Slots(n))
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if most != n {
		t.Errorf("%d at once, want %d", most, n)
	}
}

// A Do of a slot joins one of the same resource's slots, and not one of the resource.
func TestSlotsNest(t *testing.T) {
	t.Parallel()
	c := connect(t, serve(t, newLocker(t)))
	err := c.TryDo(t.Context(), "jobs", func(ctx context.Context, outer *client.Lease) error {
		return errors.Join(
			c.TryDo(ctx, "jobs", func(_ context.Context, inner *client.Lease) error {
				if inner != outer {
					t.Errorf("%s in %s", inner, outer)
				}
				return nil
			}, client.Slots(2)),
			c.TryDo(ctx, "jobs", func(_ context.Context, inner *client.Lease) error {
				if inner == outer || inner.Slot() != 0 || inner.Resource() != "jobs" {
					t.Errorf("%s in %s", inner, outer)
				}
				return nil
			}))
	}, client.Slots(2))
	if err != nil {
		t.Error(err)
	}
	for _, err := range []error{
		c.DoAll(t.Context(), []string{"a", "b"}, nil, client.Slots(2)),
		c.Do(t.Context(), "a", nil, client.Slots(-1)), c.Do(t.Context(), "a", nil, client.Slots(33)),
	} {
		if !errors.Is(err, client.ErrInvalid) {
			t.Error(err)
		}
	}
}

// Within a slot, that slot by its name is joined, and whatever is free is granted: another slot, and the resource.
func TestWithinASlot(t *testing.T) {
	t.Parallel()
	c := connect(t, serve(t, newLocker(t)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := c.Do(ctx, "jobs", func(ctx context.Context, outer *client.Lease) error {
		err := c.Do(ctx, outer.Resource(), func(_ context.Context, inner *client.Lease) error {
			if inner != outer {
				t.Errorf("%s in %s", inner, outer)
			}
			return nil
		})
		if err != nil {
			t.Errorf("the slot by its name: %v", err)
		}
		if err := c.Do(ctx, "jobs", func(context.Context, *client.Lease) error { return nil }); err != nil {
			t.Errorf("the resource: %v", err)
		}
		free, err := c.Acquire(ctx, "jobs", client.Slots(2))
		if err != nil {
			return fmt.Errorf("the other slot: %w", err)
		}
		return free.Release(ctx)
	}, client.Slots(2))
	if err != nil {
		t.Error(err)
	}
	err = c.Do(ctx, "one", func(ctx context.Context, _ *client.Lease) error {
		if _, err := c.Acquire(ctx, "one", client.Slots(1)); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("slots that are all of the work itself: %v", err)
		}
		return nil
	}, client.Slots(1))
	if err != nil {
		t.Error(err)
	}
}
