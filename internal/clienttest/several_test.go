package clienttest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/internal/testenv"
)

// One lease has all of the resources or none, with a token each; extend, look-up and
// release are of all of them.
func TestAcquireAll(t *testing.T) {
	s := serve(t, newLocker(t))
	c := connect(t, s)
	one, err := c.TryAcquire(t.Context(), "b", client.Holder("one"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []client.Part{{Resource: "b", Token: one.Token()}}; !slices.Equal(one.Parts(), want) {
		t.Errorf("the parts of one: %+v, want %+v", one.Parts(), want)
	}
	_, err = c.AcquireAll(t.Context(), []string{"c", "b", "a"}, client.Wait(0))
	problem, _ := errors.AsType[*client.ProblemError](err)
	if !errors.Is(err, client.ErrHeld) || problem == nil || problem.Resource != "b" || problem.Holder != "one" {
		t.Errorf("b is in the way, and the refusal says: %v", err)
	}
	wantHeld(t, s, false, "a", "c")
	if err := one.Release(t.Context()); err != nil {
		t.Fatal(err)
	}

	all, err := c.AcquireAll(t.Context(), []string{"c", "b", "a"}, client.TTL(short), client.Wait(0))
	if err != nil {
		t.Fatal(err)
	}
	wantHeld(t, s, true, "a", "b", "c")
	parts := all.Parts()
	if len(parts) != 3 || parts[0].Resource != "a" || parts[1].Token <= one.Token() || parts[2].Resource != "c" || !parts[2].Token.Valid() {
		t.Errorf("parts %+v after the token %d of b", parts, one.Token())
	}
	testenv.Eventually(t, short, func() error { // an extend that takes long must still be seen to extend
		if left := all.Validity(); left > short*3/4 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	until := all.Until()
	if err := all.Extend(t.Context()); err != nil || !all.Until().After(until) || !slices.Equal(all.Parts(), parts) {
		t.Errorf("extended: %v, parts %+v", err, all.Parts())
	}
	if found, err := c.Lease(t.Context(), all.ID()); err != nil || !slices.Equal(found.Parts(), parts) {
		t.Errorf("looked up: %v", err)
	}
	if err := all.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantHeld(t, s, false, "a", "b", "c")

	for _, wrong := range [][]string{nil, {"a", "a"}, {"a", ""}} {
		_, err := c.AcquireAll(t.Context(), wrong, client.Wait(0))
		if !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

func wantHeld(t *testing.T, s *service, want bool, resources ...string) {
	t.Helper()
	for _, r := range resources {
		if held(t, s.locker, r) != want {
			t.Errorf("%s is held: %v", r, !want)
		}
	}
}

// DoAll joins the lease of the same resources in any order, and breaking one of them
// ends the work.
func TestDoAll(t *testing.T) {
	t.Parallel()
	s := serve(t, newLocker(t))
	c := connect(t, s)
	err := c.DoAll(t.Context(), []string{"a", "b"}, func(ctx context.Context, outer *client.Lease) error {
		err := c.DoAll(ctx, []string{"b", "a"}, func(_ context.Context, inner *client.Lease) error {
			if inner != outer {
				return errors.New("another lease")
			}
			return nil
		}, client.Wait(0))
		if err != nil {
			return err
		}
		wantHeld(t, s, true, "a", "b")
		if err := c.DoAll(ctx, []string{"a", "b", "c"}, nil, client.Wait(0)); !errors.Is(err, client.ErrHeld) {
			t.Errorf("more resources: %v", err)
		}
		if err := c.BreakAny(ctx, "b"); err != nil {
			return err
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}, client.TTL(short), client.Wait(0))
	if problem, _ := errors.AsType[*client.ProblemError](err); !errors.Is(err, client.ErrLeaseLost) || problem == nil || problem.Kind() != "lease-not-held" {
		t.Errorf("after a break: %v", err)
	}
	wantHeld(t, s, false, "a", "b")
}
