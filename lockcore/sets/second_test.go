package sets_test

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// All sets are replaced again and again, and the secret is rotated in between. Every lease survives, even one from
// before the first change, and one of a server that had just started and seals by an earlier secret.
func TestLeasesInASecondReplacement(t *testing.T) {
	t.Parallel()
	withSets(t, 4, "a", func(a *atlas) {
		leases := []lockcore.Lease{a.take(a.serve("a", ""), "oldest")}
		for _, change := range []string{"ab", "bc", "cd"} {
			a.must(a.serve(change[:1], change[1:]).apply(a.T))
			s := a.prepare(change[1:], "")
			a.running.Go(func() { _ = s.Run(a.ctx) })
			time.Sleep(500 * time.Millisecond)
			leases = append(leases, a.take(s, change+" early"))
			time.Sleep(5 * time.Second)
			leases = append(leases, a.take(s, change+" late"))
			if change == "bc" {
				a.must(s.RotateSecret(a.Context(), false))
			}
		}
		last := a.serve("d", "")
		for _, lease := range leases {
			if _, err := last.Extend(a.Context(), lease.ID, time.Minute); err != nil {
				a.Errorf("%s: %v", lease.Resource, err)
			}
		}
	})
}

// The server that bootstraps an added set cannot reach the set that leaves. It waits, because the added set must have
// the secrets of the leaving one.
func TestAnAddedSetWaitsForTheSecretsOfTheOneThatLeaves(t *testing.T) {
	t.Parallel()
	withSets(t, 2, "a", func(a *atlas) {
		lease := a.take(a.serve("a", ""), "r")
		cut := a.prepare("a", "b")
		for _, w := range cut.wires[0] {
			w.set(func() { w.dark = true })
		}
		a.run(cut)
		if seen, err := a.models[1][0].Observe(a.Context()); err != nil || seen.Admitted {
			a.Fatalf("b is bootstrapped: %+v, %v", seen, err)
		}
		for _, w := range cut.wires[0] {
			w.set(func() { w.dark = false })
		}
		time.Sleep(5 * time.Second)
		a.must(cut.apply(a.T))
		if _, err := a.serve("b", "").Extend(a.Context(), lease.ID, time.Minute); err != nil {
			a.Error(err)
		}
	})
}
