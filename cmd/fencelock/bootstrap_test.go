package main

import (
	"errors"
	"net/http"
	"os/exec"
	"os/user"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
)

// manual is a configuration in which only an operator bootstraps the cluster. Its waits are short enough for a test.
func manual(nodes []*testenv.Redis) []string {
	return []string{
		redisAddrs(nodes), "FENCELOCK_RECOVERY=manual", "FENCELOCK_MAX_TTL=2s", "FENCELOCK_NODE_TIMEOUT=200ms",
		"FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0",
	}
}

// outcome is how a run of the program ends.
func outcome(t *testing.T, env []string, args ...string) (code int, out string) {
	t.Helper()
	text, err := command(t, env, args...).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), string(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0, string(text)
}

// founds bootstraps the cluster, and fails the test if that does not succeed.
func founds(t *testing.T, env []string, args ...string) string {
	t.Helper()
	code, out := outcome(t, env, append([]string{"bootstrap"}, args...)...)
	if code != 0 {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	return out
}

// staysShut checks that the server reports that it grants nothing, and why.
func (p *process) staysShut(why string) {
	p.t.Helper()
	p.until("the server says: "+why, func() bool {
		var ready wire.Ready
		return p.ask(&ready, "GET", "/readyz", "").StatusCode == http.StatusServiceUnavailable && strings.Contains(ready.Reason, why)
	})
	var lost wire.Problem
	p.wants(p.ask(&lost, "POST", "/locks", `{"resource":"a"}`), http.StatusServiceUnavailable)
	if lost.Type != "/problems/no-quorum" {
		p.t.Errorf("refusal %+v", lost)
	}
}

// TestBootstrap: a new cluster, and one whose nodes all lost their data, is
// bootstrapped by an operator while a server runs; tokens continue rising.
func TestBootstrap(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3, testenv.WithPersistence(testenv.PersistNone))
	env := manual(nodes)
	out := founds(t, env, "--new", "--timeout=10s")
	if !strings.Contains(out, "ready: 3 of 3 nodes vote, 2 are a quorum") {
		t.Errorf("bootstrap says:\n%s", out)
	}
	who, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if line := `"msg":"audit","identity":"` + who.Username + `","act":"bootstrap-cluster","node":"` + n.Addr(); !strings.Contains(out, line) {
			t.Errorf("the audit log has no %s:\n%s", line, out)
		}
	}
	if !strings.Contains(out, `"act":"bootstrap","result":"done","new":true,"force":false`) {
		t.Errorf("the audit log has no bootstrap:\n%s", out)
	}
	p := start(t, env...)
	before := p.acquire(`{"resource":"a","ttl_ms":1000}`)

	for _, n := range nodes {
		n.Kill()
		n.Restart()
	}
	p.staysShut("run 'fencelock bootstrap'")
	out = founds(t, env, "--timeout=20s")
	for _, says := range []string{"quarantined", "; another ", "the cluster is bootstrapped again once the longest TTL (2.022s) has passed", "ready: 3 of 3 nodes vote"} {
		if !strings.Contains(out, says) {
			t.Errorf("bootstrap does not say %q:\n%s", says, out)
		}
	}
	p.untilReady()
	if after := p.acquire(`{"resource":"a"}`); after.FencingToken <= before.FencingToken {
		t.Errorf("token %d after %d", after.FencingToken, before.FencingToken)
	}
	// Nothing is to be done for a cluster that is there, and nothing is changed.
	founds(t, env, "--new")
	founds(t, env, "--force")
	p.acquire(`{"resource":"b"}`)
}

// TestBootstrapForce loses two of five nodes for good and the data of a third. The two nodes that are left may know
// the last tokens but are no quorum. So nothing is granted until an operator gives the two lost nodes up.
func TestBootstrapForce(t *testing.T) {
	testenv.Long(t, "a forced bootstrap that trusts what it should not")
	t.Parallel()
	nodes := testenv.StartRedisN(t, 5)
	env := manual(nodes)
	founds(t, env, "--new", "--timeout=10s")
	p := start(t, env...)
	before := p.acquire(`{"resource":"a","ttl_ms":1000}`)
	nodes[0].Kill()
	nodes[1].Kill()
	nodes[2].Kill()
	nodes[2].Wipe()
	nodes[2].Restart()
	p.staysShut("unreachable or refused, and may still know the last tokens")

	if code, out := outcome(t, env, "bootstrap", "--timeout=4s"); code != cli.ExitFailed || !strings.Contains(out, "given up after 4s") || !strings.Contains(out, "unreachable or refused, and may") {
		t.Fatalf("bootstrap without --force: exit code %d:\n%s", code, out)
	}
	if code, out := outcome(t, env, "bootstrap", "--force"); code == 0 || !strings.Contains(out, "given up for good") {
		t.Fatalf("bootstrap --force without --yes: exit code %d:\n%s", code, out)
	}
	p.staysShut("unreachable or refused, and may still know the last tokens")

	out := founds(t, env, "--force", "--yes", "--timeout=20s")
	gone, _, _ := strings.Cut(out, "If one of them comes back")
	for i, n := range nodes {
		if strings.Contains(gone, n.Addr()) != (i < 2) {
			t.Errorf("bootstrap does not name the nodes that it gives up:\n%s", out)
		}
	}
	if !strings.Contains(out, "ready: 3 of 5 nodes vote") {
		t.Errorf("bootstrap says:\n%s", out)
	}
	p.untilReady()
	if after := p.acquire(`{"resource":"a"}`); after.FencingToken <= before.FencingToken {
		t.Errorf("token %d after %d", after.FencingToken, before.FencingToken)
	}
}

func TestBootstrapThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env  []string
		args []string
		code int
		says string
	}{
		{[]string{"A=b"}, nil, cli.ExitUsage, "neither FENCELOCK_REDIS_ADDRS nor FENCELOCK_STORE is set"},
		{[]string{"FENCELOCK_REDIS_ADDRS=127.0.0.1:1"}, []string{"--new", "--force"}, cli.ExitUsage, "choose one"},
		{[]string{"FENCELOCK_REDIS_ADDRS=a:1,b:2"}, nil, cli.ExitUsage, "must be 1, 3, 5 or 7"},
		{[]string{"FENCELOCK_REDIS_ADDRS=127.0.0.1:1"}, []string{"--timeout=3s"}, cli.ExitFailed, "connection refused"},
	} {
		code, out := outcome(t, c.env, append([]string{"bootstrap"}, c.args...)...)
		if code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("%v %v: exit code %d, want %d and %q:\n%s", c.env, c.args, code, c.code, c.says, out)
		}
	}
}
