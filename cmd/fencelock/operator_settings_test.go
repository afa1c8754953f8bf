package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// An operator's command that has only the list of nodes in its environment changes only what it was asked to change.
// Here the servers' longest TTL is a tenth of the default, and must stay.
func TestOperatorsCommandsChangeNoSetting(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3, testenv.WithConfig("maxmemory 100mb"))
	bare := []string{redisAddrs(nodes)}
	for _, c := range []struct {
		args     []string
		changes  []string // the fields of the record that the command is for
		thatSays string
	}{
		{args: []string{"bootstrap", "--new"}, thatSays: "ready: 3 of 3 nodes vote"},
		{args: []string{"sets", "status"}, thatSays: "ready"},
		{args: []string{"check"}, thatSays: "the longest that any server of this cluster has had is 6s"},
		{args: []string{"secret", "rotate"}, changes: []string{"secrets"}, thatSays: "new secret"},
	} {
		if c.args[0] == "sets" { // the cluster has been started; its servers come
			start(t, redisAddrs(nodes), "FENCELOCK_NODE_DOWN_AFTER=3s", "FENCELOCK_MAX_TTL=6s")
		}
		before := records(t, nodes)
		got := finish(t, command(t, bare, c.args...), "")
		if !strings.Contains(got.out+got.errOut, c.thatSays) {
			t.Errorf("%v says\n%s%s", c.args, got.out, got.errOut)
		}
		for i, now := range records(t, nodes) {
			for field, value := range now {
				switch known, ok := before[i][field]; {
				case c.args[0] == "bootstrap" && field == "max_ttl" && value != "0":
					t.Errorf("%v records a longest TTL of %s ms, which no server has", c.args, value)
				case c.args[0] == "bootstrap" || slices.Contains(c.changes, field):
				case !ok || known != value:
					t.Errorf("%v changed %s of node %d from %q to %q", c.args, field, i+1, known, value)
				}
			}
		}
	}
}

// records returns the admission records of the nodes.
func records(t *testing.T, nodes []*testenv.Redis) (all []map[string]string) {
	t.Helper()
	for _, n := range nodes {
		record, err := n.Client().HGetAll(t.Context(), "fencelock").Result()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, maps.Clone(record))
	}
	return all
}
