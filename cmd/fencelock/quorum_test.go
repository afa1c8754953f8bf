package main

import (
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
)

// TestQuorumAndPostgres runs the program in its main configuration: a quorum of Redis nodes, and the guarded records
// in Postgres.
func TestQuorumAndPostgres(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3)
	pg := testenv.StartPostgres(t)
	p := start(t, redisAddrs(nodes), "FENCELOCK_DATABASE_URL="+pg.URL(), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=1s")
	if text := p.Stdout(); text != "" {
		t.Errorf("stdout is for who tries it out: %s", text)
	}
	token := func(l wire.Lease) string { return "Fencing-Token: " + strconv.FormatInt(l.FencingToken, 10) }

	first := p.acquire(`{"resource":"orders/42"}`)
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+first.LeaseID), http.StatusNoContent)
	second := p.acquire(`{"resource":"orders/42","ttl_ms":60000}`)
	p.untilAnswer(http.StatusOK, "POST", "/guarded/orders/42", "", token(second)) // the schema may be on its way
	p.wants(p.ask(nil, "PUT", "/guarded/orders/42", `{"by":1}`, token(first)), http.StatusPreconditionFailed)
	p.wants(p.ask(nil, "PUT", "/guarded/orders/42", `{"by":2}`, token(second)), http.StatusOK)
	// What JSON allows and some column types do not must not be a 500.
	for _, value := range []string{`"\u0000"`, `1e999999`, `-0`, `{"a":{"":null}}`} {
		resp := p.ask(nil, "PUT", "/guarded/odd", value, "Fencing-Token: 1")
		if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s answered %d", value, resp.StatusCode)
		}
	}

	// Without Postgres locks continue, the guard says so, and comes back by itself.
	pg.Kill()
	p.untilAnswer(http.StatusServiceUnavailable, "GET", "/guarded/orders/42", "") // a session outlives its server for a moment
	var away wire.Problem
	resp := p.ask(&away, "GET", "/guarded/orders/42", "")
	p.wants(resp, http.StatusServiceUnavailable)
	if away.Type != "/problems/guard-unavailable" || resp.Header.Get("Retry-After") == "" {
		t.Errorf("refusal %+v, Retry-After %q", away, resp.Header.Get("Retry-After"))
	}
	p.acquire(`{"resource":"meanwhile"}`)
	pg.Restart()
	p.untilAnswer(http.StatusOK, "GET", "/guarded/orders/42", "")

	// A minority may go; without a majority nothing is granted, at once.
	nodes[0].Kill()
	p.acquire(`{"resource":"minority"}`)
	nodes[1].Kill()
	p.untilAnswer(http.StatusServiceUnavailable, "GET", "/readyz", "")
	var lost wire.Problem
	begun := time.Now()
	p.wants(p.ask(&lost, "POST", "/locks", `{"resource":"majority"}`), http.StatusServiceUnavailable)
	if lost.Type != "/problems/no-quorum" || lost.QuorumDetails == nil || lost.Asked != 3 || lost.Quorum != 2 || len(lost.Nodes) != 3 {
		t.Errorf("refusal %+v", lost)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the refusal took %s", took)
	}
	var ready wire.Ready
	p.ask(&ready, "GET", "/readyz", "")
	if ready.Ready || ready.Reason == "" || ready.Voting != 1 || ready.Quorum != 2 {
		t.Errorf("readyz %+v", ready)
	}
	for _, n := range ready.Nodes {
		if (n.State == "voting") != (n.Reason == "") {
			t.Errorf("node %+v", n)
		}
	}
}

// TestRedisWithoutPostgres: without Postgres guarded records are refused, unless the operator asks for a file. In a
// file of one server, other servers would not see them.
func TestRedisWithoutPostgres(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 1)
	p := start(t, redisAddrs(nodes), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=1s")
	var none wire.Problem
	p.wants(p.ask(&none, "GET", "/guarded/a", ""), http.StatusNotImplemented)
	if none.Type != "/problems/guard-not-configured" {
		t.Errorf("refusal %+v", none)
	}
	p.acquire(`{"resource":"a"}`)
	p.Kill()

	p = start(t, redisAddrs(nodes), "FENCELOCK_DATA="+t.TempDir()+"/own.db")
	p.wants(p.ask(nil, "PUT", "/guarded/a", "1", "Fencing-Token: 1"), http.StatusOK)
	p.until("the operator is warned", func() bool {
		return strings.Contains(p.Logs(), "guards the writes through this server only")
	})
}

// TestSeveralSets spreads resources over two quorums. The loss of one quorum stops only its share.
func TestSeveralSets(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 2)
	p := start(t, redisAddrs(nodes[:1])+";"+nodes[1].URL(), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=3s")
	for i := range 20 {
		p.acquire(`{"resource":"r` + strconv.Itoa(i) + `"}`)
	}
	nodes[0].Kill()
	held, lost := 0, 0
	for i := range 20 {
		switch status := p.ask(nil, "GET", "/locks/r"+strconv.Itoa(i), "").StatusCode; status {
		case http.StatusOK:
			held++
		case http.StatusServiceUnavailable:
			lost++
		default:
			t.Errorf("status %d", status)
		}
	}
	if held == 0 || lost == 0 {
		t.Errorf("%d resources are on the living set, %d on the dead one", held, lost)
	}
}

// A first start on empty nodes logs no warning, whether the operator announced a new cluster or not.
func TestFirstStartLogsNoWarning(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{
		"the embedded file": {"FENCELOCK_DATA=" + filepath.Join(t.TempDir(), "fencelock.db"), "FENCELOCK_URL=http://127.0.0.1:1"},
		"new nodes":         append(changeOf([][]*testenv.Redis{testenv.StartRedisN(t, 3)}, nil), "FENCELOCK_BOOTSTRAP=new"),
		"empty nodes":       append(changeOf([][]*testenv.Redis{testenv.StartRedisN(t, 3)}, nil), "FENCELOCK_MAX_TTL=2s", "FENCELOCK_DEFAULT_TTL=2s", "FENCELOCK_NODE_TIMEOUT=200ms"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, env...)
			p.release(p.acquire(`{"resource":"a"}`))
			if log := p.Logs(); strings.Contains(log, `"WARN"`) {
				t.Error(log)
			}
		})
	}
}

// With several node sets, nodes shows each with its own quorum.
func TestNodesShowsSets(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 6)
	p := start(t, append(changeOf([][]*testenv.Redis{nodes[:3], nodes[3:]}, nil), "FENCELOCK_BOOTSTRAP=new")...)
	shown := p.tool("", nil, "nodes")
	shown.wants(t, "nodes", 0, "set 1: 3 of 3 vote, 2 are a quorum\nset 2: 3 of 3 vote, 2 are a quorum\n", "")
	shown.wants(t, "nodes", 0, "SET  NODE", "")
	for _, n := range nodes[4:] {
		n.Kill()
	}
	p.untilAnswer(http.StatusServiceUnavailable, "GET", "/readyz", "")
	var ready wire.Ready
	p.ask(&ready, "GET", "/readyz", "")
	if len(ready.Sets) != 2 || !ready.Sets[0].Ready || ready.Sets[1].Ready || ready.Sets[1].Voting != 1 || ready.Sets[1].Quorum != 2 || ready.Sets[1].Reason == "" || len(ready.Sets[1].Nodes) != 3 {
		t.Errorf("%+v", ready.Sets)
	}
	if strings.Contains(ready.Reason, "--force") {
		t.Errorf("the reason suggests what would do harm: %s", ready.Reason)
	}
	p.tool("", nil, "nodes").wants(t, "nodes", cli.ExitFailed, "set 2: 1 of 3 vote, 2 are a quorum: 2 of 3 nodes are unreachable", "grants nothing")
}
