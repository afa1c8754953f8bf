package main

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// A server whose store is down at the start stays up without being ready, says for what it waits, and serves when the
// store is there. If it is stopped before that, it ends at once.
func TestAStoreThatIsDownAtTheStart(t *testing.T) {
	testenv.Long(t, "an engine whose error at the start ends the server")
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) (url string, kill, restart func()){
		"Postgres": func(t *testing.T) (string, func(), func()) {
			t.Helper()
			pg := testenv.StartPostgres(t)
			return pg.URL(), pg.Kill, pg.Restart
		},
		"etcd": func(t *testing.T) (string, func(), func()) {
			t.Helper()
			etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
			return etcd.URL("locks"), etcd.Members[0].Kill, etcd.Members[0].Restart
		},
		"ZooKeeper": func(t *testing.T) (string, func(), func()) {
			t.Helper()
			zk := testenv.StartZooKeeper(t, 1)
			return "zookeeper://" + testenv.ZooKeeperAddrs(zk) + "/locks", zk[0].Kill, zk[0].Restart
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, kill, restart := open(t)
			kill()
			env := func() []string {
				return []string{
					"FENCELOCK_STORE=" + url, "FENCELOCK_MAX_TTL=2m",
					fmt.Sprintf("FENCELOCK_LISTEN=127.0.0.1:%d", testenv.FreePort(t)), fmt.Sprintf("FENCELOCK_ADMIN_LISTEN=127.0.0.1:%d", testenv.FreePort(t)),
				}
			}
			p := startUnready(t, "http", http.DefaultClient, env()...)
			p.wants(p.ask(nil, "GET", "/healthz", ""), http.StatusOK)
			var ready wire.Ready
			p.wants(p.ask(&ready, "GET", "/readyz", ""), http.StatusServiceUnavailable)
			if !strings.Contains(ready.Reason, "the store has not responded") {
				t.Errorf("not ready: %q", ready.Reason)
			}
			for _, call := range [][2]string{{"POST", "/locks"}, {"GET", "/locks/a"}, {"GET", "/locks"}, {"GET", "/guarded/a"}} {
				body := ""
				if call[0] == "POST" {
					body = `{"resource":"a","ttl_ms":90000}` // above the default of the longest TTL
				}
				p.wants(p.ask(nil, call[0], call[1], body), http.StatusServiceUnavailable)
			}
			if metrics := p.scrape(); !strings.Contains(metrics, "\nfencelock_ready 0\n") {
				t.Error("fencelock_ready is not 0")
			}
			if log := p.Logs(); !strings.Contains(log, "the store does not respond") || strings.Contains(log, `"error":null`) {
				t.Errorf("the log says\n%s", log)
			}
			stopped := startUnready(t, "http", http.DefaultClient, env()...)
			stopped.Signal(syscall.SIGTERM)
			if code := stopped.exit(); code != 0 {
				t.Errorf("a server that is stopped while it waits ends with %d", code)
			}
			restart()
			p.untilReady()
			p.release(p.acquire(`{"resource":"a","ttl_ms":2000}`))
		})
	}
}
