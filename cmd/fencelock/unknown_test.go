package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
)

// Without a quorum the commands say that the state is unknown. They do not print an empty list or a free lock.
func TestWithoutAQuorumTheStateIsUnknown(t *testing.T) {
	testenv.Long(t, "a command that guesses without a quorum")
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3)
	p := start(t, redisAddrs(nodes), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=1s")
	p.acquire(`{"resource":"orders/42","ttl_ms":60000}`)
	p.tool("", nil, "get", "orders/42").wants(t, "get", 0, "state     held", "")
	nodes[0].Kill()
	nodes[1].Kill()
	p.untilAnswer(503, "GET", "/readyz", "")
	for _, output := range []string{"table", "json"} {
		for what, args := range map[string][]string{"which locks are held": {"ls"}, "whether orders/42 is held": {"get", "orders/42"}} {
			got := p.tool("", nil, append(args, "-o", output)...)
			if got.wants(t, what, 69, "", "it is unknown "+what+": the service has no quorum: "); got.out != "" || !strings.Contains(got.errOut, "fencelock nodes") {
				t.Errorf("%v -o %s: %+v", args, output, got)
			}
		}
	}
	p.tool("", nil, "nodes").wants(t, "nodes", 1, "unreachable", "the server grants nothing")
}

// A caller that may not read gets an error and not an empty list. A caller that may read a part is told that the list
// is only a part.
func TestWithoutTheRightToReadTheStateIsUnknown(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access")
	all := tokenFor(t, file, "all", "--acquire", "*")
	some := tokenFor(t, file, "some", "--read", "orders/", "--acquire", "jobs/")
	most := tokenFor(t, file, "most", "--read", "*", "--none", "jobs/")
	none := tokenFor(t, file, "nothing")
	p := start(t, "FENCELOCK_ACCESS_FILE="+file)
	for _, resource := range []string{"orders/1", "jobs/1", "secret"} {
		p.wants(p.ask(nil, "POST", "/locks", `{"resource":"`+resource+`"}`, bearer(all)), 201)
	}
	for _, c := range []struct {
		who     string
		args    []string
		code    int
		rows    int
		errOut  string
		without string
	}{
		{all, []string{"ls"}, 0, 3, "", "shown"},
		{some, []string{"ls"}, 0, 2, `only the locks that some may read are shown: those that begin with "orders/", "jobs/"`, ""},
		{some, []string{"ls", "orders/"}, 0, 1, "", "shown"},
		{some, []string{"ls", "sec"}, 77, 0, `it is unknown which locks are held: some may not read any lock that begins with "sec"`, ""},
		{most, []string{"ls"}, 0, 2, `locks that most may not read are not shown: those that begin with "jobs/"`, ""},
		{most, []string{"ls", "jobs/1"}, 77, 0, "it is unknown which locks are held", ""},
		{none, []string{"ls"}, 77, 0, "nothing may not read any lock", ""},
		{"flk_wrong", []string{"ls"}, 77, 0, "it is unknown which locks are held: the service does not know this caller", ""},
		{none, []string{"get", "orders/1"}, 77, 0, "it is unknown whether orders/1 is held: not allowed: ", ""},
	} {
		got := p.tool("", []string{"FENCELOCK_BEARER_TOKEN=" + c.who}, append(c.args, "-o", "json")...)
		got.wants(t, strings.Join(c.args, " "), c.code, "", c.errOut)
		var locks []wire.Lock
		if c.code == 0 && (json.Unmarshal([]byte(got.out), &locks) != nil || len(locks) != c.rows) || c.code != 0 && got.out != "" {
			t.Errorf("%v shows %s", c.args, got.out)
		}
		if c.without != "" && strings.Contains(got.errOut, c.without) {
			t.Errorf("%v says %s", c.args, got.errOut)
		}
	}
}

// Control and bidirectional characters in the names of other callers are escaped wherever they are printed.
func TestNamesCannotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	p := start(t)
	const evil, shown = "\u202eevil\u2066", `\u202eevil\u2066`
	p.acquire(`{"resource":"` + evil + `","holder":"` + evil + `","metadata":{"a":"` + evil + `"},"ttl_ms":60000}`)
	_ = p.waits(t.Context(), evil, evil, time.Minute)
	p.awaitWaiting(evil, 1)
	for _, c := range []struct {
		args    []string
		code    int
		escaped int // how often
	}{
		{[]string{"ls"}, 0, 2},
		{[]string{"ls", "-o", "json"}, 0, 3},
		{[]string{"get", evil}, 0, 4},
		{[]string{"get", "-o", "json", evil}, 0, 4},
		{[]string{"acquire", "-n", evil}, cli.ExitHeld, 2},
		{[]string{"acquire", "--wait", "5" + evil, "r"}, 2, 1},
		{[]string{"ls", "--url", "http://" + evil}, 69, 1},
		{[]string{evil}, 2, 1},
		{[]string{"run", "r", "--", evil}, 127, 1},
		{[]string{"break", "--yes", "--any", evil}, 0, 1},
	} {
		got := p.tool("", nil, c.args...)
		text := got.out + got.errOut
		if got.code != c.code || strings.Count(text, shown) < c.escaped || strings.ContainsAny(text, "\u202e\u2066") {
			t.Errorf("%q: code %d: %q", c.args, got.code, text)
		}
	}
}
