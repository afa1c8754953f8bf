package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/internal/testenv"
)

// twoServers starts two servers with the settings of the load tests.
func twoServers(t *testing.T, env ...string) *fleet {
	t.Helper()
	return newFleet(t, 2, append(operationSettings(), env...)...)
}

// clientOf returns the environment of a command that uses the first server.
func (f *fleet) clientOf() string { return "FENCELOCK_URL=" + f.servers[0].url }

// A node is replaced, and servers are restarted, by the commands of their page while leases are held.
func TestReplaceANode(t *testing.T) {
	testenv.Long(t, "a replaced node, or a restarted server, that costs a lease")
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3, testenv.WithUsers(shippedUsers(t)...), testenv.WithConfig("maxmemory 100mb"))
	var urls []string
	for _, n := range nodes {
		urls = append(urls, "redis://fencelock:fencelock@"+n.Addr())
	}
	f := twoServers(t, "FENCELOCK_REDIS_ADDRS="+strings.Join(urls, ","), "FENCELOCK_NODE_DOWN_AFTER=3s")
	page := operatorPage(t, "how-to/upgrade.md")
	env := []string{"NODE=" + nodes[0].Addr(), "REDISCLI_AUTH=admin", f.clientOf()}
	underLoad(t, f.direct(), func() {
		if out := page.run("fencelock nodes || true", t.TempDir(), env...); strings.Count(out, "voting") < len(nodes) {
			t.Errorf("before: %s", out)
		}
		page.run("SHUTDOWN NOSAVE", t.TempDir(), env...)
		nodes[0].Kill() // it has ended
		nodes[0].Wipe()
		nodes[0].Restart()
		if out := page.run("fencelock nodes --wait 5m", t.TempDir(), env...); strings.Count(out, "voting") < len(nodes) {
			t.Errorf("afterwards: %s", out)
		}
	}).costs(f, "replace a node")
	underLoad(t, f.direct(), func() {
		for i := range f.servers {
			f.restart(i)
		}
	}).costs(f, "restart or upgrade servers")
}

// An operator finds a killed server and starts it again by the commands of the runbook. A restart of its Postgres
// costs nothing.
func TestServerDownByTheRunbook(t *testing.T) {
	testenv.Long(t, "a runbook that misleads")
	t.Parallel()
	pg := testenv.StartPostgres(t)
	f := twoServers(t, "FENCELOCK_STORE="+pg.URL())
	page := operatorPage(t, "how-to/runbook.md", "127.0.0.1:8081", f.servers[1].admin)
	status := func() string { return page.run("%{http_code}", t.TempDir()) }
	underLoad(t, f.direct(), func() {
		if out := strings.TrimSpace(status()); out != "200" {
			t.Errorf("a server that runs: %s", out)
		}
		f.servers[1].Kill()
		if out := status(); !strings.HasSuffix(strings.TrimSpace(out), "000") {
			t.Errorf("a server that was killed: %s", out)
		}
		page.run("fencelock check", t.TempDir(), append(anyPorts(), f.env...)...)
		f.start(1)
		page.run("fencelock nodes --wait", t.TempDir(), "FENCELOCK_URL="+f.servers[1].url)
	}).costs(f, "start a server again")
	underLoad(t, f.direct(), func() {
		pg.Shutdown()
		pg.Restart()
	}).costs(f, "restart Postgres")
}

// The commands of each engine's page set a server up on the engine's own servers. check, which the page runs first,
// finds nothing wrong, and locks and guarded records work.
func TestServersByTheirPages(t *testing.T) {
	testenv.Long(t, "an engine's page whose first commands start no server")
	t.Parallel()
	database := testenv.StartPostgres(t).URL()
	redis := testenv.StartRedisN(t, 5)
	var addrs []string
	for _, n := range redis {
		addrs = append(addrs, n.Addr())
	}
	etcd, zk := testenv.StartEtcd(t, 1, testenv.EtcdOptions{}), testenv.StartZooKeeper(t, 1)[0]
	for _, engine := range []struct {
		page, has string
		names     []string
	}{
		{"how-to/five-redis.md", "fencelock check", []string{
			"redis-1:6379,redis-2:6379,redis-3:6379,redis-4:6379,redis-5:6379", strings.Join(addrs, ","), "postgres://fencelock:secret@db/app", database,
		}},
		{"how-to/postgres.md", "fencelock serve", []string{"postgres://fencelock:secret@db-1,db-2/locks?target_session_attrs=primary", testenv.StartPostgres(t).URL()}},
		{"how-to/etcd.md", "fencelock serve", []string{"etcds://fencelock:secret@etcd-1:2379,etcd-2:2379,etcd-3:2379/locks?ca=/etc/fencelock/etcd-ca.pem", etcd.URL("locks")}},
		{"how-to/zookeeper.md", "fencelock serve", []string{"zk-1:2181,zk-2:2181,zk-3:2181", zk.Addr()}},
	} {
		t.Run(engine.page, func(t *testing.T) {
			t.Parallel()
			commands, serve, ok := strings.Cut(operatorPage(t, engine.page, engine.names...).commands(engine.has), "fencelock serve")
			if !ok {
				t.Fatal("the block starts no server")
			}
			commands = strings.ReplaceAll(commands, "fencelock check", "fencelock check || [ $? -eq 3 ]") // risks of a test's servers
			commands = strings.ReplaceAll(commands, "FENCELOCK_BOOTSTRAP=new ", "export FENCELOCK_BOOTSTRAP=new\n")
			cmd := exec.Command("bash", "-euc", commands+"exec fencelock serve") // exec: signals reach it
			cmd.Dir, cmd.Env = t.TempDir(), append(operatorsShell(t), anyPorts()...)
			cmd.Env = append(cmd.Env, "FENCELOCK_LOG_FORMAT=json")
			p := startCommand(t, "http", http.DefaultClient, cmd)
			p.untilReady()
			p.release(p.acquire(`{"resource":"r"}`))
			if strings.TrimSpace(serve) != "" { // in another terminal
				rest := exec.Command("bash", "-euc", serve)
				rest.Env = append(operatorsShell(t), "FENCELOCK_URL="+p.url)
				if out, err := rest.CombinedOutput(); err != nil {
					t.Errorf("%s: %v: %s", serve, err, out)
				}
			}
		})
	}
}

// Locks move to another engine by the steps of the page, and then to a third one: nothing is granted until every
// lease of the old engine has ended.
func TestMoveUnderLoad(t *testing.T) {
	testenv.Long(t, "a move to another engine that costs more than the page says")
	t.Parallel()
	places := []place{redisPlace(t), postgresPlace(t), etcdPlace(t)}
	f := twoServers(t, places[0].setting, "FENCELOCK_NODE_DOWN_AFTER=3s")
	for i, old := range places {
		next := places[(i+1)%len(places)]
		underLoad(t, f.direct(), func() {
			for _, server := range f.servers {
				server.Signal(syscall.SIGTERM)
			}
			for _, server := range f.servers {
				server.exit()
			}
			pauseFor(t.Context(), operationMaxTTL) // step 4
			f.env = append(operationSettings(), next.setting, "FENCELOCK_NODE_DOWN_AFTER=3s")
			for i := range f.servers {
				f.start(i, "FENCELOCK_BOOTSTRAP=new")
			}
			old.empty()
		}).costs(f, "move to another engine")
	}
}

// Bearer tokens, certificates, proof keys and the secret of lease ids are replaced as the page on
// access says.
func TestSecretsAreReplacedUnderLoad(t *testing.T) {
	testenv.Long(t, "a replaced secret that ends leases")
	t.Parallel()
	dir := t.TempDir()
	access, bearerFile, proofs := filepath.Join(dir, "access.txt"), filepath.Join(dir, "load.token"), filepath.Join(dir, "proof.keys")
	certFile, keyFile := filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
	authority := newAuthority(t)
	authority.server(certFile, keyFile)
	callers := authority.client(nil)
	replace := func(file, text string) { // written new and renamed, as the page advises
		writeFile(t, file+".new", text)
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	tokenRule := regexp.MustCompile(`token=\S+`)
	writeFile(t, bearerFile, tokenFor(t, access, "load", "--acquire", "*"))
	one, two := "k1 "+strings.Repeat("1e", 32)+"\n", "k2 "+strings.Repeat("2e", 32)+"\n"
	writeFile(t, proofs, one)
	store := "FENCELOCK_STORE=" + testenv.StartPostgres(t).OwnerURL()
	f := newFleetOver(t, callers, 2, append(operationSettings(), store, "FENCELOCK_ACCESS_FILE="+access, "FENCELOCK_PROOF_KEY_FILE="+proofs,
		"FENCELOCK_TLS_CERT_FILE="+certFile, "FENCELOCK_TLS_KEY_FILE="+keyFile)...)
	page := operatorPage(t, "how-to/access.md")
	underLoad(t, f.direct(), func() {
		after := filepath.Join(dir, "after.txt")
		second := tokenFor(t, after, "load", "--acquire", "*")
		replace(access, strings.Replace(read(access), "token=", tokenRule.FindString(read(after))+" token=", 1))
		f.usesChanged(1)
		replace(bearerFile, second)
		replace(access, read(after))
		f.usesChanged(2)
		replace(proofs, one+two)
		f.usesChanged(3)
		replace(proofs, two+one)
		f.usesChanged(4)
		replace(proofs, two)
		f.usesChanged(5)
		authority.server(certFile, keyFile)
		f.usesChanged(6)
		callers.CloseIdleConnections()
		if out := page.run("fencelock secret rotate", t.TempDir(), store); !strings.Contains(out, "new secret") {
			t.Error(out)
		}
	}, client.WithBearerTokenFile(bearerFile), client.WithHTTPClient(callers)).costs(f, "replace a bearer token")
}
