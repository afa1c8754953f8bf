package faults

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/vacancy"
)

// looksAt are looks of 10 ms at account 1, 100 ms apart, from second 2 to 4.
func looksAt(held, wanted bool) (looks []vacancy.Look) {
	for i := range 20 {
		l := vacancy.Look{From: 2*time.Second + time.Duration(i)*100*time.Millisecond, Held: held, Token: 7}
		l.To = l.From + 10*time.Millisecond
		if wanted {
			l.Waiters = 1
		}
		looks = append(looks, l)
	}
	return looks
}

func TestVacancies(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		looks   []vacancy.Look
		works   []work
		kind    string // "" if the account is not vacant
		trouble trouble
		excuse  string
	}{
		"free":                          {looksAt(false, true), nil, "idle", trouble{}, ""},
		"free, and nobody waits":        {looksAt(false, false), nil, "", trouble{}, ""},
		"held, and a worker is at it":   {looksAt(true, true), []work{{account: 1, begin: s, end: 5 * s}}, "", trouble{}, ""},
		"held, and nobody is at it":     {looksAt(true, true), []work{{account: 2, begin: s, end: 5 * s}}, "orphaned", trouble{}, ""},
		"held after the work has ended": {looksAt(true, true), []work{{account: 1, begin: s, end: s + s/2}}, "orphaned", trouble{}, ""},
		"held by a worker that died":    {looksAt(true, true), nil, "orphaned", trouble{name: "a worker", from: 3 * s, worker: true}, "a worker"},
		"held since a worker died":      {looksAt(true, true), nil, "orphaned", trouble{name: "a worker", from: s, worker: true}, "a worker"},
		"free since a worker died":      {looksAt(false, true), nil, "idle", trouble{name: "a worker", from: s, worker: true}, ""},
		"free since a server died":      {looksAt(false, true), nil, "idle", trouble{name: "a server", from: s / 2, to: s, server: true}, "a server"},
		"free long after a server died": {looksAt(false, true), nil, "idle", trouble{name: "a server", from: -6 * s, to: -5 * s, server: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			found := vacancies(c.looks, 1, c.works, []trouble{c.trouble})
			if c.kind == "" {
				if len(found) > 0 {
					t.Errorf("vacant: %+v", found)
				}
				return
			}
			if len(found) != 1 || found[0].Kind != c.kind || found[0].Counted != 19*90*time.Millisecond {
				t.Fatalf("%+v, want one that is %s", found, c.kind)
			}
			if found[0].Why != c.excuse || found[0].Excused != (c.excuse != "") {
				t.Errorf("allowed by %q, want %q", found[0].Why, c.excuse)
			}
		})
	}
}
