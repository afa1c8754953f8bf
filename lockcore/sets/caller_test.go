package sets_test

import (
	"errors"
	"testing"

	"github.com/fencelock/fencelock/lockcore"
)

// A call that forgets its caller is refused, and not made on behalf of everyone.
func TestNobodyIsNoCaller(t *testing.T) {
	l := serving(t, "own", 3)
	lease, err := l.Acquire(t.Context(), lockcore.Request{Resource: "r", IdempotencyKey: "k"})
	if err != nil {
		t.Fatal(err)
	}
	nobody := lockcore.Request{Resource: "r", IdempotencyKey: "k"}
	for name, call := range map[string]func() error{
		"acquire": func() error { _, err := l.Locker.Acquire(t.Context(), nobody); return err },
		"find":    func() error { _, err := l.Locker.Find(t.Context(), nobody); return err },
		"cancel":  func() error { _, err := l.Locker.Cancel(t.Context(), nobody); return err },
		"forget":  func() error { return l.Locker.ForgetPlace(t.Context(), nobody) },
		"open":    func() error { _, err := l.Locker.Open(t.Context(), lockcore.Caller{}, lease.ID); return err },
		"list":    func() error { _, err := l.List(t.Context(), lockcore.ListRequest{Limit: 1}); return err },
	} {
		if err := call(); !errors.Is(err, lockcore.ErrNoCaller) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := l.Lease(t.Context(), lease.ID); err != nil {
		t.Errorf("the lease is %v", err)
	}
}
