package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// TestNodesOfASetChange follows docs/how-to/change-nodes.md under load: from one node to three, from three to five,
// one machine replaced by another, from five to three. Machines that stay in the set serve the new set from another
// database.
func TestNodesOfASetChange(t *testing.T) {
	testenv.Long(t, "that a set cannot get other nodes while leases are held")
	t.Parallel()
	machines := testenv.StartRedisN(t, 6)
	page := operatorPage(t, "how-to/change-nodes.md")
	list := func(database int, of ...int) string {
		var nodes []string
		for _, i := range of {
			nodes = append(nodes, fmt.Sprintf("%s%d", strings.TrimSuffix(machines[i].URL(), "0"), database))
		}
		return strings.Join(nodes, ",")
	}
	env := func(list string) []string {
		return append(operationSettings(), "FENCELOCK_NODE_DOWN_AFTER=2s", "FENCELOCK_REDIS_ADDRS="+list)
	}
	for i, change := range []struct {
		name     string
		from, to []int
	}{
		{"one node to three", []int{0}, []int{0, 1, 2}}, {"three to five", []int{0, 1, 2}, []int{0, 1, 2, 3, 4}},
		{"a machine replaced", []int{0, 1, 2}, []int{0, 1, 5}}, {"five to three", []int{0, 1, 2, 3, 4}, []int{0, 1, 2}},
	} {
		t.Run(change.name, func(t *testing.T) {
			from, to := 2*i, 2*i+1 // databases
			present, next := list(from, change.from...), list(to, change.to...)
			f := newFleet(t, 2, env(present)...)
			both := "FENCELOCK_REDIS_NEXT_ADDRS=" + next
			e, end := startExclusive(t, f.direct(), usual()) // none of whom is refused
			operator := []string{"FENCELOCK_REDIS_ADDRS=" + present, both}
			underLoad(t, f.direct(), func() {
				f.restartWith(append(env(present), both))
				testenv.Eventually(t, patience, func() error { // until the new set is ready
					if plan := page.run("--dry-run", t.TempDir(), operator...); !strings.Contains(plan, "every running server has both maps") {
						return errors.New(plan)
					}
					return nil
				})
				if out := page.run("--from 0", t.TempDir(), operator...); !strings.Contains(out, "the next node sets are in force") {
					t.Error(out)
				}
				f.restartWith(env(next))
				for _, left := range change.from {
					emptyDatabase(t, machines[left], from)
				}
			}).costs(f, "change the nodes")
			end()
			for _, err := range e.wrong {
				t.Error(err)
			}
			runSets(t, []string{"FENCELOCK_REDIS_ADDRS=" + next}, "status").wants(t, "status", 0, "next: nothing", "")
		})
	}
}

// emptyDatabase empties one of the databases of a Redis.
func emptyDatabase(t *testing.T, node *testenv.Redis, database int) {
	t.Helper()
	conn := node.Client().Conn()
	defer func() { _ = conn.Close() }()
	if err := errors.Join(conn.Select(t.Context(), database).Err(), conn.FlushDB(t.Context()).Err()); err != nil {
		t.Error(err)
	}
}
