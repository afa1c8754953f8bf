package redisnode_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

func TestBundleIsAllOrNone(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 3, longTTL)
	q.awaitVoting(t, 3)
	one := q.take(t, "b")
	_, err := q.Acquire(t.Context(), lockcore.Request{Resources: []string{"c", "a", "b"}})
	if !errors.Is(err, lockcore.ErrHeld) {
		t.Fatal(err)
	}
	if s, err := q.Inspect(t.Context(), "a"); err != nil || s.Held {
		t.Fatalf("a part stayed behind: %+v, %v", s, err)
	}
	if err := q.Release(t.Context(), one.ID); err != nil {
		t.Fatal(err)
	}
	all, err := q.Acquire(t.Context(), lockcore.Request{Resources: []string{"c", "a", "b"}})
	if err != nil || len(all.Parts) != 3 || all.Parts[0].Resource != "a" || all.Parts[1].Token <= one.Token {
		t.Fatalf("%+v, %v", all, err)
	}
	again, err := q.Extend(t.Context(), all.ID, 0)
	if err != nil || again.ID != all.ID || !slices.Equal(again.Parts, all.Parts) {
		t.Fatalf("%+v, %v", again, err)
	}
	if now, err := q.Lease(t.Context(), all.ID); err != nil || now.ID != all.ID {
		t.Fatalf("%+v, %v", now, err)
	}
	if err := q.Release(t.Context(), all.ID); err != nil {
		t.Fatal(err)
	}
	for _, resource := range []string{"a", "b", "c"} {
		if s, err := q.Inspect(t.Context(), resource); err != nil || s.Held {
			t.Fatalf("%+v, %v", s, err)
		}
	}
}

func TestBundlesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	q := startQuorum(t, 3, longTTL)
	q.awaitVoting(t, 3)
	var wg sync.WaitGroup
	for i := range 12 {
		resources := []string{"x", "y", "z"}
		slices.Reverse(resources[i%2:])
		wg.Go(func() {
			for range 5 {
				lease, err := q.Acquire(t.Context(), lockcore.Request{Resources: resources, Wait: 30 * time.Second})
				if err == nil {
					err = q.Release(t.Context(), lease.ID)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
