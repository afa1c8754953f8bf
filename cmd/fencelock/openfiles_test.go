package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// startLimited runs a server that may open n files.
func startLimited(t *testing.T, files int, env ...string) *process {
	t.Helper()
	cmd := command(t, append(anyPorts(), env...), "serve")
	limited := exec.Command("sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files), cmd.Path, "serve")
	limited.Dir, limited.Env = cmd.Dir, cmd.Env
	p := startCommand(t, "http", http.DefaultClient, limited)
	p.untilReady()
	return p
}

// idleConnections opens n connections that stay idle. It sends a request over every second one first.
func idleConnections(t *testing.T, address string, n int) {
	t.Helper()
	for i := range n {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if i%2 == 0 { // an error: the server may have closed it at once
			_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		}
	}
}

// However many connections are idle at either listener, both serve new ones, the server reaches its nodes, and a
// caller that waits for a lock keeps its connection. The log has one line a minute about it.
func TestIdleConnectionsDoNotUseUpTheFiles(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3)
	p := startLimited(t, 256, redisAddrs(nodes), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_TIMEOUT=5s")
	holder := p.acquire(`{"resource":"held","ttl_ms":60000}`)
	waiter := p.waitRaw("held", "waiter")
	p.awaitWaiting("held", 1)

	began := time.Now()
	idleConnections(t, strings.TrimPrefix(p.url, "http://"), 1000)
	idleConnections(t, p.admin, 100)

	for range 5 {
		p.client = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
		p.wants(p.ask(nil, "GET", "/readyz", ""), http.StatusOK)
		resp, err := p.client.Get("http://" + p.admin + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		metrics, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !strings.Contains(string(metrics), `fencelock_connections_limit{listener="FENCELOCK_LISTEN"} 192`) {
			t.Errorf("the metrics have no limit of 192 connections (%v)", err)
		}
		p.release(p.acquire(`{"resource":"free"}`))
	}
	for _, n := range nodes { // a connection to a node needs a file, too
		if err := n.Client().Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal").Err(); err != nil {
			t.Fatal(err)
		}
	}
	p.untilReady()
	p.untilAnswer(http.StatusNoContent, "DELETE", "/leases/current", "", "Fencelock-Lease: "+holder.LeaseID)
	if grant := readGrant(t, waiter); grant.FencingToken <= holder.FencingToken {
		t.Errorf("the waiter got token %d after %d", grant.FencingToken, holder.FencingToken)
	}
	for _, listener := range []string{"FENCELOCK_LISTEN", "FENCELOCK_ADMIN_LISTEN"} {
		lines, most := 0, 1+int(time.Since(began)/time.Minute)
		for line := range strings.Lines(p.Logs()) {
			if strings.Contains(line, "connections reach their limit") && strings.Contains(line, `"`+listener+`"`) && strings.Contains(line, "WARN") && strings.Contains(line, "ulimit -n") {
				lines++
			}
		}
		if lines < 1 || lines > most {
			t.Errorf("%d lines warn of the limit of %s, want 1 a minute:\n%s", lines, listener, p.Logs())
		}
	}
}
