package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// usesChanged waits until every server has logged for the n-th time that it uses a changed file.
func (f *fleet) usesChanged(n int) {
	f.t.Helper()
	for _, p := range f.servers {
		testenv.Eventually(f.t, patience, func() error {
			if used := strings.Count(p.Logs(), "a changed file is in use now"); used < n {
				return fmt.Errorf("a server uses %d changed files, want %d", used, n)
			}
			return nil
		})
	}
}

// withFile starts two servers that read their store's setting from a file.
func withFile(t *testing.T, variable, value string, env ...string) (f *fleet, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return twoServers(t, append(env, variable+"="+file)...), file
}

// The password of a store changes while servers hold leases, by the commands of its page. Nobody loses a lease, and
// requests are granted all the time, also over new connections.
func TestRedisPasswordChange(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3, testenv.WithUsers(shippedUsers(t)...), testenv.WithConfig("maxmemory 100mb"))
	var addrs, urls []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr())
		urls = append(urls, "redis://fencelock:fencelock@"+n.Addr())
	}
	f, file := withFile(t, "FENCELOCK_REDIS_ADDRS_FILE", strings.Join(urls, ","), "FENCELOCK_NODE_DOWN_AFTER=3s")
	page := operatorPage(t, "how-to/five-redis.md", "redis-1:6379 redis-2:6379 redis-3:6379 redis-4:6379 redis-5:6379", strings.Join(addrs, " "))
	env := []string{"OLD=fencelock", "NEW=another", "REDISCLI_AUTH=admin", "FENCELOCK_REDIS_ADDRS_FILE=" + file}
	underLoad(t, f.direct(), func() {
		page.run(`fencelock ">$NEW"`, t.TempDir(), env...)
		page.run("sed -i", t.TempDir(), env...)
		f.usesChanged(1)
		page.run(`fencelock "<$OLD"`, t.TempDir(), env...)
		for _, n := range nodes {
			admin := testenv.RedisAs(t, n, "admin", "admin")
			if err := admin.Do(t.Context(), "CLIENT", "KILL", "USER", "fencelock").Err(); err != nil {
				t.Error(err)
			}
			if err := testenv.RedisAs(t, n, "fencelock", "fencelock").Ping(t.Context()).Err(); err == nil {
				t.Error("the old password still works")
			}
		}
	}).costs(f, "change a password")
}

func TestPostgresPasswordChange(t *testing.T) {
	testenv.Long(t, "a login role of Postgres that cannot be replaced")
	t.Parallel()
	pg := testenv.StartPostgres(t)
	admin := pg.URL()
	sqlOn(t, admin, "CREATE ROLE locks LOGIN PASSWORD 'first'", "GRANT CREATE ON DATABASE "+databaseOf(t, admin)+" TO locks")
	f, file := withFile(t, "FENCELOCK_STORE_FILE", asUser(t, admin, "locks", "first"))
	page := operatorPage(t, "how-to/postgres.md")
	env := []string{"NEW=another", "ADMIN=" + admin, "FENCELOCK_STORE_FILE=" + file}
	underLoad(t, f.direct(), func() {
		page.run("CREATE ROLE locks_b", t.TempDir(), env...)
		page.run("sed -i", t.TempDir(), env...)
		f.usesChanged(1)
		page.run("NOLOGIN", t.TempDir(), env...)
	}).costs(f, "change a password")
	if n := sqlValue[int](t, admin, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'locks'"); n != 0 {
		t.Errorf("%d connections of the old role", n)
	}
}

func TestEtcdPasswordChange(t *testing.T) {
	testenv.Long(t, "a login of etcd that outlives its user")
	t.Parallel()
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	for _, command := range []string{
		"user add root:right", "user grant-role root root", "user add fencelock:first", //nolint:dupword // a user and a role
	} {
		etcd.Ctl(strings.Fields(command)...)
	}
	page := operatorPage(t, "how-to/etcd.md")
	page.run("role add", t.TempDir(), etcd.Members[0].Environment()...)
	etcd.Ctl("auth", "enable")
	f, file := withFile(t, "FENCELOCK_STORE_FILE", strings.Replace(etcd.URL("locks"), "://", "://fencelock:first@", 1))
	env := append(etcd.Members[0].Environment(), "ETCDCTL_USER=root:right", "NEW=another", "FENCELOCK_STORE_FILE="+file)
	underLoad(t, f.direct(), func() {
		page.run("user add fencelock_b", t.TempDir(), env...)
		page.run("sed -i", t.TempDir(), env...)
		f.usesChanged(1)
		page.run("user delete fencelock", t.TempDir(), env...)
	}).costs(f, "change a password")
}

func TestZooKeeperPasswordChange(t *testing.T) {
	testenv.Long(t, "what one server wrote, and another with the new password may not read")
	t.Parallel()
	zk := testenv.StartZooKeeper(t, 1)[0]
	f, file := withFile(t, "FENCELOCK_STORE_FILE", "zookeeper://fencelock:first@"+zk.Addr()+"/fencelock")
	page := operatorPage(t, "how-to/zookeeper.md", "zk-1:2181", zk.Addr())
	env := []string{"OLD=first", "NEW=another", "FENCELOCK_STORE_FILE=" + file, "PATH=" + testenv.ZooKeeperCLI(t) + ":" + os.Getenv("PATH")}
	underLoad(t, f.direct(), func() {
		page.run("setAcl", t.TempDir(), env...)
		page.run("sed -i", t.TempDir(), env...)
		f.usesChanged(1)
		page.run("setAcl", t.TempDir(), env...)
		for i := range f.servers {
			f.restart(i)
		}
	}).costs(f, "change a password")
}

// A file has the password of a guard's database, and changes. New connections use the new password.
func TestGuardPasswordChange(t *testing.T) {
	t.Parallel()
	maria := testenv.MariaDB(t)
	first := maria.OwnerURL()
	owner, err := url.Parse(first)
	if err != nil {
		t.Fatal(err)
	}
	f, file := withFile(t, "FENCELOCK_DATABASE_URL_FILE", first, redisAddrs(testenv.StartRedisN(t, 1)))
	write := func(token int) {
		t.Helper()
		for _, p := range f.servers {
			p.wants(p.decided("PUT", "/guarded/a", "1", fmt.Sprint("Fencing-Token: ", token)), http.StatusOK)
		}
	}
	write(1)
	user, admin := owner.User.Username(), maria.Admin()
	asAdmin := func(statement string) {
		t.Helper()
		if _, err := admin.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	asAdmin("SET PASSWORD FOR " + user + " = PASSWORD('another')")
	writeFile(t, file, asUser(t, first, user, "another"))
	f.usesChanged(1)
	asAdmin("KILL USER " + user)
	write(2)
}

// A server keeps its password if the store refuses that of the changed file, or if the file names another store.
func TestChangedFileThatIsRefused(t *testing.T) {
	t.Parallel()
	node := testenv.StartRedis(t, testenv.WithUser("u", "right"))
	f, file := withFile(t, "FENCELOCK_REDIS_ADDRS_FILE", node.URL())
	p := f.servers[0]
	for _, c := range []struct{ value, says string }{
		{strings.Replace(node.URL(), ":right@", ":wrong@", 1), "refuses the new user or password: WRONGPASS"},
		{strings.TrimSuffix(node.URL(), "0") + "1", "only the user and the password may change while it runs"},
	} {
		if err := os.WriteFile(file, []byte(c.value), 0o600); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, patience, func() error {
			if log := p.Logs(); !strings.Contains(log, c.says) || strings.Contains(log, "wrong@") {
				return fmt.Errorf("the log does not say %q", c.says)
			}
			if !strings.Contains(p.scrape(), `fencelock_file_refused{file="FENCELOCK_REDIS_ADDRS_FILE"} 1`) {
				return errors.New("the metric does not say so")
			}
			return nil
		})
		if err := testenv.RedisAs(t, node, "testenv", "testenv").Do(t.Context(), "CLIENT", "KILL", "USER", "u").Err(); err != nil {
			t.Error(err)
		}
		p.acquireEventually(c.says)
	}
}

// asUser returns a URL for another user.
func asUser(t *testing.T, text, user, password string) string {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}
