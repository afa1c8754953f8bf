package vacancy

import (
	"testing"
	"time"
)

// Find counts only time between two looks that show the same state, soon one after the other.
func TestFind(t *testing.T) {
	const ms = time.Millisecond
	look := func(at time.Duration, label string) Look {
		return Look{From: at, To: at + 10*ms, Held: label != "", Label: label}
	}
	blind := Look{From: 100 * ms, To: 110 * ms, Blind: true}
	free := Cause{Kind: Idle, Why: "free"}
	for name, c := range map[string]struct {
		looks []Look
		want  []time.Duration // of each run
	}{
		"the same":              {[]Look{look(0, ""), look(100*ms, ""), look(200*ms, "")}, []time.Duration{180 * ms}},
		"another state between": {[]Look{look(0, ""), look(100*ms, "a"), look(200*ms, "")}, nil},
		"another lease":         {[]Look{look(0, "a"), look(100*ms, "b")}, nil},
		"a gap":                 {[]Look{look(0, ""), look(1500*ms, "")}, nil},
		"a blind look":          {[]Look{look(0, ""), blind, look(200*ms, "")}, nil},
		"twice":                 {[]Look{look(0, ""), look(100*ms, ""), look(200*ms, "a"), look(300*ms, ""), look(400*ms, "")}, []time.Duration{90 * ms, 90 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			runs := Find(c.looks, func(*Look, *Look) (Cause, bool) { return free, true })
			if len(runs) != len(c.want) {
				t.Fatalf("%+v, want %v", runs, c.want)
			}
			for i, r := range runs {
				if r.Counted != c.want[i] || r.Cause != free {
					t.Errorf("%+v, want %s", r, c.want[i])
				}
			}
		})
	}
	if runs := Find([]Look{look(0, ""), look(100*ms, "")}, func(*Look, *Look) (Cause, bool) { return free, false }); len(runs) > 0 {
		t.Errorf("%+v without a cause", runs)
	}
}
