package demo

import (
	"slices"
	"strings"
	"testing"
)

func TestVerdictsOfGoodRounds(t *testing.T) {
	for _, r := range []Round{lost(), kept()} {
		if v := r.Verdict(); !v.OK {
			t.Errorf("guarded %v: %+v", r.Guarded, v)
		}
	}
	if !report(lost(), kept()).OK() {
		t.Error("a run with two good rounds is not OK")
	}
	for _, r := range []Report{report(), report(lost()), report(lost(), func() Round { r := kept(); r.Final = 130; return r }())} {
		if r.OK() {
			t.Errorf("OK with %d rounds", len(r.Rounds))
		}
	}
}

// TestVerdictsOfBadRounds changes one thing in a good round.
func TestVerdictsOfBadRounds(t *testing.T) {
	change := func(who Actor, kind Kind, how func(*Event)) func(*Round) {
		return func(r *Round) {
			how(&r.Events[slices.IndexFunc(r.Events, func(e Event) bool { return e.Who == who && e.Kind == kind })])
		}
	}
	drop := func(who Actor, kind Kind) func(*Round) {
		return func(r *Round) {
			r.Events = slices.DeleteFunc(r.Events, func(e Event) bool { return e.Who == who && e.Kind == kind })
		}
	}
	for _, c := range []struct {
		name string
		of   Round
		how  func(*Round)
		says string
	}{
		{"nothing was lost", lost(), func(r *Round) { r.Final = 150 }, "the balance is 150, and 130 was expected"},
		{"B's write is there", lost(), func(r *Round) { r.Final = 120 }, "the balance is 120"},
		{"A was not stopped", lost(), drop(WorkerA, Stopped), "A was not stopped"},
		{"A was not continued", lost(), drop(WorkerA, Continued), "A was not continued"},
		{"A never wrote", lost(), drop(WorkerA, Wrote), "A never tried to write"},
		{"B never wrote", lost(), drop(WorkerB, Wrote), "B never wrote"},
		{"A had no lock", lost(), drop(WorkerA, Acquired), "A never had the lock"},
		{"B had no lock", lost(), drop(WorkerB, Acquired), "B never had the lock"},
		{"A was too quick", lost(), change(WorkerA, Wrote, func(e *Event) { e.At = 0 }), "before it could be stopped"},
		{"B was too slow", lost(), change(WorkerB, Wrote, func(e *Event) { e.At *= 2 }), "A wrote before B"},
		{"two valid leases", lost(), change(WorkerB, Acquired, func(e *Event) { e.At /= 2 }), "before A's lease expired"},
		{"B's token is no larger", lost(), change(WorkerB, Acquired, token(34)), "B's token 34 is not above A's token 34"},
		{"plain storage refused", lost(), change(WorkerA, Wrote, func(e *Event) { e.Kind = Refused }), "refused by storage that checks nothing"},
		{"the late write was accepted", kept(), change(WorkerA, Refused, func(e *Event) { e.Kind = Wrote }), "A's late write was accepted"},
		{"refused for another token", kept(), change(WorkerA, Refused, token(7)), "A was refused token 7"},
		{"refused without B's token", kept(), change(WorkerA, Refused, highest(7)), "after 7"},
		{"a deposit is missing", kept(), func(r *Round) { r.Final = 130 }, "the balance is 130, and 150 was expected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := c.of
			c.how(&r)
			v := r.Verdict()
			if v.OK || !strings.Contains(v.Detail, c.says) || !strings.Contains(v.Title, " not ") {
				t.Errorf("%+v, want a refusal that says %q", v, c.says)
			}
		})
	}
}

func TestShortTokens(t *testing.T) {
	for token, want := range map[int64]string{35: "35", 99_999: "99999", 100_001: "…001", 1795168220055: "…055"} {
		if got := short(token); got != want {
			t.Errorf("%d is %q, want %q", token, got, want)
		}
	}
}
