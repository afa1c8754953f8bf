package redlock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/servicetest"
)

// asOwner makes every call that takes a lease id. Each has the error that it returns for a wrong id.
func asOwner(c *cluster, ctx context.Context, id string) map[string]error { //nolint:revive // reads better so
	_, look := c.Lease(ctx, id)
	_, extend := c.Extend(ctx, id, 0)
	return map[string]error{
		"lease": look, "extend": extend, "release": c.Release(ctx, id),
	}
}

func TestALeaseAnswersToItsOwnerAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		alice, bob := servicetest.WithCaller(t.Context(), "alice"), servicetest.WithCaller(t.Context(), "bob")
		lease, err := c.Acquire(alice, req)
		if err != nil {
			t.Fatal(err)
		}
		for name, err := range asOwner(c, bob, lease.ID) {
			if !errors.Is(err, lockcore.ErrNotHeld) {
				t.Errorf("%s by another caller gives %v", name, err)
			}
		}
		again, err := c.Extend(alice, lease.ID, 20*time.Second)
		if err != nil || again.ID != lease.ID || again.Token != lease.Token {
			t.Fatalf("extended by its owner: %+v, %v", again, err)
		}
		if now, err := c.Lease(alice, lease.ID); err != nil || now.ID != lease.ID {
			t.Errorf("seen by its owner: %+v, %v", now, err)
		}
		if opened, err := c.Open(alice, lease.ID); err != nil || !slices.Equal(opened.Terms().Parts, []lockcore.LeasePart{{Resource: req.Resource, Token: lease.Token}}) {
			t.Errorf("opened by its owner: %+v, %v", opened, err)
		}
		// Nor can it be brought back under another name once it has ended.
		settle(time.Minute)
		if _, err := c.Extend(bob, lease.ID, 0); !errors.Is(err, lockcore.ErrNotHeld) {
			t.Errorf("an expired lease extended by another caller: %v", err)
		}
		if n := c.locked(); n != 0 {
			t.Errorf("that left %d locks", n)
		}
		if _, err := c.Extend(alice, lease.ID, time.Minute); err != nil {
			t.Errorf("extended by its owner after it expired: %v", err)
		}
		if err := c.Release(alice, lease.ID); err != nil {
			t.Errorf("released by its owner: %v", err)
		}
	})
}

// The ownership value of a request under an idempotency key is derived from a secret. A retry finds its lease even
// after that secret was replaced, and through a server that has not learned of the replacement yet.
func TestAnIdempotencyKeyOutlivesItsSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := testKeys(t, "one")
		c := newCluster(t, 3, redlock.Config{Keys: func() *keyring.Ring { return keys }})
		keyed := req
		keyed.IdempotencyKey = "k"
		lease := mustAcquire(t, c, keyed)
		for _, secrets := range [][]string{{"two", "one"}, {"one", "two"}, {"two", "one"}} {
			keys = testKeys(t, secrets...)
			if again, err := c.Acquire(t.Context(), keyed); err != nil || !again.Existing || again.Token != lease.Token {
				t.Fatalf("a retry under %v: %+v, %v", secrets, again, err)
			}
			settle(time.Second) // of the first lease value no vote stays
			if _, err := c.Lease(t.Context(), lease.ID); err != nil {
				t.Fatalf("under %v the lease is %v", secrets, err)
			}
		}
		if err := c.Release(t.Context(), lease.ID); err != nil {
			t.Error(err)
		}
		settle(time.Second)
		if n := c.locked(); n != 0 {
			t.Errorf("%d nodes are locked", n)
		}
	})
}

func TestAnIdempotencyKeyIsItsOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, redlock.Config{})
		alice, bob := servicetest.WithCaller(t.Context(), "alice"), servicetest.WithCaller(t.Context(), "bob")
		keyed := req
		keyed.IdempotencyKey = "k"
		lease, err := c.Acquire(alice, keyed)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := c.Acquire(alice, keyed); err != nil || !again.Existing || again.Token != lease.Token {
			t.Errorf("the same owner's retry: %+v, %v", again, err)
		}
		if _, err := c.Acquire(bob, keyed); !errors.Is(err, lockcore.ErrHeld) {
			t.Errorf("another caller's request with the same key: %v", err)
		}
	})
}
