package faults

import (
	"math"
	"testing"
)

// looksAt are looks of 10 ms at account 1, 100 ms apart, from second 2 to 4.
func looksAt(held, wanted bool) (looks []look) {
	for i := range 20 {
		from := 2 + float64(i)/10
		looks = append(looks, look{account: 1, from: from, to: from + 0.01, held: held, token: 7, wanted: wanted})
	}
	return looks
}

func TestVacancies(t *testing.T) {
	for name, c := range map[string]struct {
		looks   []look
		works   []work
		kind    string // "" if the account is not vacant
		trouble trouble
		excuse  string
	}{
		"free":                          {looksAt(false, true), nil, "idle", trouble{}, ""},
		"free, and nobody waits":        {looksAt(false, false), nil, "", trouble{}, ""},
		"held, and a worker is at it":   {looksAt(true, true), []work{{account: 1, begin: 1, end: 5}}, "", trouble{}, ""},
		"held, and nobody is at it":     {looksAt(true, true), []work{{account: 2, begin: 1, end: 5}}, "orphaned", trouble{}, ""},
		"held after the work has ended": {looksAt(true, true), []work{{account: 1, begin: 1, end: 1.5}}, "orphaned", trouble{}, ""},
		"held by a worker that died":    {looksAt(true, true), nil, "orphaned", trouble{name: "a worker", from: 3, worker: true}, "a worker"},
		"held since a worker died":      {looksAt(true, true), nil, "orphaned", trouble{name: "a worker", from: 1, worker: true}, "a worker"},
		"free since a worker died":      {looksAt(false, true), nil, "idle", trouble{name: "a worker", from: 1, worker: true}, ""},
		"free since a server died":      {looksAt(false, true), nil, "idle", trouble{name: "a server", from: 0.5, to: 1, server: true}, "a server"},
		"free long after a server died": {looksAt(false, true), nil, "idle", trouble{name: "a server", from: -6, to: -5, server: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			found := vacancies(c.looks, c.works)
			if c.kind == "" {
				if len(found) > 0 {
					t.Errorf("vacant: %+v", found)
				}
				return
			}
			if len(found) != 1 || found[0].kind() != c.kind || math.Abs(found[0].counted-19*0.09) > 0.01 {
				t.Fatalf("%+v, want one that is %s", found, c.kind)
			}
			if excuse := found[0].excuse([]trouble{c.trouble}); excuse != c.excuse {
				t.Errorf("allowed by %q, want %q", excuse, c.excuse)
			}
		})
	}
}
