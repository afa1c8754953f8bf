package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// documented runs the command of docs/how-to/back-up.md that begins with this text.
func documented(t *testing.T, dir, begins string, env ...string) {
	t.Helper()
	if said, err := tryDocumented(t, dir, begins, env...); err != nil {
		t.Fatalf("%s: %v: %s", begins, err, said)
	}
}

// tryDocumented runs the command, and returns what it printed.
func tryDocumented(t *testing.T, dir, begins string, env ...string) (said string, err error) {
	t.Helper()
	page, err := os.ReadFile("../../docs/how-to/back-up.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(begins)+`.*$`).FindAllString(string(page), -1)
	if len(commands) != 1 {
		t.Fatalf("the page has %d commands %q", len(commands), begins)
	}
	cmd := exec.Command("bash", "-ec", commands[0])
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// The embedded file is copied and restored by the documented commands. Afterwards records and marks are as they were
// when the copy was made.
func TestEmbeddedBackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	begin := func() *process { return start(t, "FENCELOCK_DATA="+filepath.Join(dir, "fencelock.db")) }
	end := func(p *process) {
		p.Signal(syscall.SIGTERM)
		if code := p.exit(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	write := func(p *process, token int64, status int) {
		p.wants(p.ask(nil, "PUT", "/guarded/a", fmt.Sprint(token), fmt.Sprint("Fencing-Token: ", token)), status)
	}
	p := begin()
	kept := p.acquire(`{"resource":"a"}`).FencingToken
	write(p, kept, http.StatusOK)
	end(p)
	documented(t, dir, "cp fencelock.db")
	p = begin()
	write(p, kept+5, http.StatusOK)
	end(p)
	documented(t, dir, "cp fencelock.bak")
	p = begin()
	var record wire.Record
	p.wants(p.ask(&record, "GET", "/guarded/a", ""), http.StatusOK)
	if record.HighestToken != kept || string(record.Value) != fmt.Sprint(kept) {
		t.Errorf("the record is %+v, want that of token %d", record, kept)
	}
	write(p, kept-1, http.StatusPreconditionFailed)
	write(p, kept, http.StatusOK)
}

// restoredUnderLoad restores the store of running servers. The servers notice it, grant nothing for the longest TTL,
// and tokens rise afterwards.
func restoredUnderLoad(t *testing.T, store string, backup, restore func()) {
	t.Helper()
	f := twoServers(t, store, "FENCELOCK_NODE_TIMEOUT=500ms")
	f.servers[0].release(f.servers[0].acquire(`{"resource":"probe"}`))
	backup()
	f.servers[0].untilReady()
	underLoad(t, f.direct(), restore).costs(f, "restore a backup")
}

// Stores that servers share, and Redis nodes, are backed up and restored by the documented commands.
func TestPostgresBackup(t *testing.T) {
	testenv.Long(t, "a backup of Postgres that brings leases or tokens back")
	t.Parallel()
	store, dir := "FENCELOCK_STORE="+testenv.StartPostgres(t).OwnerURL(), t.TempDir()
	restoredUnderLoad(t, store, func() { documented(t, dir, "pg_dump ", store) }, func() {
		testenv.Eventually(t, time.Minute, func() error { // as the page says
			said, err := tryDocumented(t, dir, "pg_restore ", store)
			if err != nil && !strings.Contains(said, "deadlock detected") {
				t.Fatalf("%v: %s", err, said)
			}
			return err
		})
	})
}

func TestRedisBackup(t *testing.T) {
	testenv.Long(t, "a backup of Redis that is admitted")
	t.Parallel()
	nodes, dir := testenv.StartRedisN(t, 3, testenv.WithPersistence(testenv.PersistAOFAlways)), t.TempDir()
	eachNode := func(begins string) {
		for _, n := range nodes {
			own := filepath.Join(dir, filepath.Base(n.Addr()))
			if err := os.MkdirAll(own, 0o700); err != nil {
				t.Fatal(err)
			}
			documented(t, own, begins, n.Environment()...)
		}
	}
	restoredUnderLoad(t, redisAddrs(nodes), func() { eachNode("cp -r ") }, func() {
		for _, n := range nodes {
			n.Shutdown()
		}
		eachNode(`rm -r "$DATA/appendonlydir"`)
		for _, n := range nodes {
			n.Restart()
		}
	})
}

func TestSoakEtcdBackup(t *testing.T) {
	testenv.Soak(t, "an etcd backup that brings leases or tokens back")
	t.Parallel()
	etcd, dir := testenv.StartEtcd(t, 3, testenv.EtcdOptions{}), t.TempDir()
	restoredUnderLoad(t, "FENCELOCK_STORE="+etcd.URL("locks"),
		func() { documented(t, dir, "etcdctl snapshot save", etcd.Members[0].Environment()...) },
		func() {
			etcd.RestoreBy(func(m *testenv.EtcdMember) { documented(t, dir, "etcdctl snapshot restore", m.Environment()...) })
		})
}

func TestSoakZooKeeperBackup(t *testing.T) {
	testenv.Soak(t, "a ZooKeeper backup that brings leases or tokens back")
	t.Parallel()
	z, dir := testenv.StartZooKeeper(t, 1)[0], t.TempDir()
	stopped := func(begins string) {
		z.Kill()
		documented(t, dir, begins, z.Environment()...)
		z.Restart()
	}
	restoredUnderLoad(t, "FENCELOCK_STORE=zookeeper://"+z.Addr()+"/locks",
		func() { stopped("tar ") }, func() { stopped(`rm -r "$DATA/version-2"`) })
}

// The guard of a MariaDB is dumped and restored with its records and marks.
func TestMariaDBBackup(t *testing.T) {
	testenv.Long(t, "a backup of MariaDB that loses the guard")
	t.Parallel()
	maria, dir := testenv.MariaDB(t), t.TempDir()
	p := start(t, "FENCELOCK_DATA="+filepath.Join(dir, "data"), "FENCELOCK_DATABASE_URL="+maria.OwnerURL())
	write := func(token int64, status int) {
		t.Helper()
		p.wants(p.ask(nil, "PUT", "/guarded/a", fmt.Sprint(token), fmt.Sprint("Fencing-Token: ", token)), status)
	}
	env := maria.Environment(dir)
	write(34, http.StatusOK)
	documented(t, dir, "mariadb-dump ", env...)
	write(36, http.StatusOK)
	documented(t, dir, "mariadb ", env...)
	var record wire.Record
	p.wants(p.ask(&record, "GET", "/guarded/a", ""), http.StatusOK)
	if record.HighestToken != 34 || string(record.Value) != "34" {
		t.Errorf("the record is %+v, want that of token 34", record)
	}
	write(33, http.StatusPreconditionFailed)
	write(35, http.StatusOK)
	if out, err := runGuard(t, "status", "--database-url", maria.OwnerURL()); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
