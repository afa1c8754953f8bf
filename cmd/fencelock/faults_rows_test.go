package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fencelock/fencelock/internal/testenv"
)

// startFaulty starts the server of a row.
func startFaulty(t *testing.T, env ...string) *process {
	t.Helper()
	return start(t, append(env, "FENCELOCK_MAX_TTL="+faultMaxTTL.String(), "FENCELOCK_DEFAULT_TTL=2s")...)
}

// lost is how long after a fault locks may take to be granted again, if the fault costs a wait of the longest TTL.
const lost = faultMaxTTL + 5*time.Second

// lineFaults returns the faults of a proxy in front of a server.
func lineFaults(line *testenv.Proxy) []fault {
	return []fault{
		{name: "network cut, packets lost", begin: func() { line.Cut(testenv.CutBlackhole) }, end: func() { line.Cut(testenv.CutNone); line.Reset() }},
		{name: "network cut, connections refused", begin: func() { line.Cut(testenv.CutRefuse) }, end: func() { line.Cut(testenv.CutNone) }},
		{name: "slow network: 25 ms each way", begin: func() { line.Delay(25 * time.Millisecond) }, end: func() { line.Delay(0) }},
	}
}

// through is the URL with the proxy's address in place of the server's.
func through(t *testing.T, text string, line *testenv.Proxy) string {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = line.Addr()
	return u.String()
}

func hostOf(t *testing.T, text string) string {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// tmpfs is a small disk. It needs root.
func tmpfs(t *testing.T, megabytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=777", megabytes)); err != nil {
		t.Skipf("a disk that can be filled needs root and mount: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// full is the fault of a disk without room.
func full(t *testing.T, dir string) fault {
	t.Helper()
	path := filepath.Join(dir, "ballast")
	return fault{name: "disk full", says: "no space left", begin: func() {
		ballast, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ballast.Close() }()
		for chunk := make([]byte, 4096); err == nil; {
			_, err = ballast.Write(chunk)
		}
	}, end: func() { _ = os.Remove(path) }}
}

// onSmallDisk moves a folder of a server to a small disk, which is easily filled.
func onSmallDisk(t *testing.T, server interface {
	Kill()
	Restart()
}, dir string, megabytes int) string {
	t.Helper()
	server.Kill()
	disk := tmpfs(t, megabytes)
	for _, args := range [][]string{
		{"cp", "-a", dir + "/.", disk}, {"chmod", "--reference", dir, disk}, {"chown", "--reference", dir, disk},
		{"mount", "--bind", disk, dir},
	} {
		if said, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, said)
		}
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	server.Restart()
	return disk
}

// fullUnder is the fault of a server whose disk is full: the server ends or refuses writes, and is started again when
// there is room.
func fullUnder(t *testing.T, server interface {
	Kill()
	Restart()
}, disk string, also func()) fault {
	t.Helper()
	row := full(t, disk)
	fill, room := row.begin, row.end
	row.name, row.says, row.within = "disk full, then restarted", "", 15*time.Second
	row.begin = func() { fill(); also() }
	row.end = func() { room(); server.Kill(); server.Restart() }
	return row
}

// setting returns the value of a name in a list of NAME=value; "" if it is not there.
func setting(list []string, name string) string {
	for _, one := range list {
		if value, found := strings.CutPrefix(one, name+"="); found {
			return value
		}
	}
	return ""
}

func embeddedFaults(t *testing.T) (*process, []fault) {
	t.Helper()
	dir := tmpfs(t, 4)
	p := startFaulty(t, "FENCELOCK_DATA="+filepath.Join(dir, "fencelock.db"))
	return p, []fault{
		{name: "SIGSTOP of the server", down: true, begin: func() { p.Freeze() }, end: func() { p.Thaw() }},
		full(t, dir),
	}
}

func redisFaults(t *testing.T) (*process, []fault) {
	t.Helper()
	nodes := testenv.StartRedisN(t, 3, testenv.WithPersistence(testenv.PersistAOFAlways))
	lines := make([]*testenv.Proxy, len(nodes))
	addrs := make([]string, len(nodes))
	for i, n := range nodes {
		lines[i] = testenv.StartProxy(t, n.Addr())
		addrs[i] = lines[i].Addr()
	}
	p := startFaulty(t, "FENCELOCK_REDIS_ADDRS="+strings.Join(addrs, ","), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_TIMEOUT=250ms")
	two := func(do func(int)) func() {
		return func() { do(0); do(1) }
	}
	set := func(key, value string) func(int) {
		return func(i int) {
			if err := nodes[i].Client().ConfigSet(context.WithoutCancel(t.Context()), key, value).Err(); err != nil {
				t.Error(err)
			}
		}
	}
	return p, []fault{
		{name: "SIGSTOP of one", serves: true, begin: nodes[0].Freeze, end: nodes[0].Thaw},
		{name: "SIGSTOP of two", begin: two(func(i int) { nodes[i].Freeze() }), end: two(func(i int) { nodes[i].Thaw() })},
		{name: "kill -9 of two, restarted", within: lost, begin: two(func(i int) { nodes[i].Kill() }), end: two(func(i int) { nodes[i].Restart() })},
		{name: "memory full on one (noeviction)", serves: true, begin: func() { set("maxmemory", "1mb")(0) }, end: func() { set("maxmemory", "0")(0) }},
		{name: "memory full on two (noeviction)", says: "it cannot be written: OOM", begin: two(set("maxmemory", "1mb")), end: two(set("maxmemory", "0"))},
		{name: "replicas missing on two (min-replicas-to-write)", says: "it cannot be written: NOREPLICAS", begin: two(set("min-replicas-to-write", "1")), end: two(set("min-replicas-to-write", "0"))},
		{name: "password set on two", says: "NOAUTH", begin: two(func(i int) { set("requirepass", "new")(i); lines[i].Reset() }),
			end: two(func(i int) {
				ctx, conn := context.WithoutCancel(t.Context()), nodes[i].Client().Conn()
				defer func() { _ = conn.Close() }()
				if err := errors.Join(conn.Auth(ctx, "new").Err(), conn.ConfigSet(ctx, "requirepass", "").Err()); err != nil {
					t.Error(err)
				}
			})},
		{name: "FLUSHALL on two", within: lost, begin: two(func(i int) { nodes[i].FlushAll() }), end: func() {}},
		{name: "two cut off, packets lost", begin: two(func(i int) { lines[i].Cut(testenv.CutBlackhole) }), end: two(func(i int) { lines[i].Cut(testenv.CutNone); lines[i].Reset() })},
		{name: "two cut off, connections refused", begin: two(func(i int) { lines[i].Cut(testenv.CutRefuse) }), end: two(func(i int) { lines[i].Cut(testenv.CutNone) })},
		{name: "slow network: 25 ms each way to two", serves: true, begin: two(func(i int) { lines[i].Delay(25 * time.Millisecond) }), end: two(func(i int) { lines[i].Delay(0) })},
	}
}

// postgresFaults makes faults of a Postgres server that only this test uses.
type postgresFaults struct {
	t    *testing.T
	pg   *testenv.PG
	line *testenv.Proxy
	p    *process
}

func newPostgresFaults(t *testing.T) *postgresFaults {
	t.Helper()
	pg := testenv.StartPostgres(t)
	line := testenv.StartProxy(t, hostOf(t, pg.URL()))
	return &postgresFaults{t: t, pg: pg, line: line, p: startFaulty(t, "FENCELOCK_STORE="+through(t, pg.OwnerURL(), line))}
}

func (f *postgresFaults) sql(statements ...string) func() {
	return func() { sqlOn(f.t, f.pg.URL(), statements...) }
}

func (f *postgresFaults) standby() fault {
	return fault{
		name: "synchronous standby missing", says: "standby that synchronous_standby_names asks for",
		begin: f.sql(`ALTER SYSTEM SET synchronous_standby_names = 'nobody'`, `SELECT pg_reload_conf()`),
		end:   f.sql(`SET synchronous_commit = local`, `ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`),
	}
}

func (f *postgresFaults) lock() fault {
	var conn *pgx.Conn
	return fault{
		name: "another program's lock on the schema's tables", says: `program "psql"`,
		begin: func() {
			var err error
			if conn, err = pgx.Connect(f.t.Context(), f.pg.URL()); err != nil {
				f.t.Fatal(err)
			}
			for _, statement := range []string{`SET application_name = 'psql'`, `BEGIN`, `LOCK TABLE fencelock.turn`} {
				if _, err := conn.Exec(f.t.Context(), statement); err != nil {
					f.t.Fatal(err)
				}
			}
		},
		end: func() { _ = conn.Close(context.WithoutCancel(f.t.Context())) },
	}
}

func (f *postgresFaults) all() []fault {
	role := databaseOf(f.t, "x:///"+userOf(f.t, f.pg.OwnerURL()))
	hangUp := `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '` + role + `'`
	return append(lineFaults(f.line),
		fault{name: "kill -9, restarted", begin: f.pg.Kill, end: f.pg.Restart},
		fault{name: "SIGSTOP", begin: f.pg.Freeze, end: f.pg.Thaw},
		f.standby(), f.lock(),
		fault{
			name: "read-only", says: "default_transaction_read_only",
			begin: f.sql(`ALTER SYSTEM SET default_transaction_read_only = on`, `SELECT pg_reload_conf()`),
			end:   f.sql(`SET default_transaction_read_only = off`, `ALTER SYSTEM RESET default_transaction_read_only`, `SELECT pg_reload_conf()`),
		},
		fault{
			name: "the role may not log in", says: "not permitted to log in",
			begin: f.sql(`ALTER ROLE `+role+` NOLOGIN`, hangUp), end: f.sql(`ALTER ROLE ` + role + ` LOGIN`),
		},
		fault{
			name: "schema deleted", says: "the schema fencelock, or a part of it, was deleted", within: lost + 15*time.Second,
			begin: f.sql(`DROP SCHEMA fencelock CASCADE`), end: func() {},
		})
}

func userOf(t *testing.T, text string) string {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u.User.Username()
}

func etcdFaults(t *testing.T) (*process, []fault) {
	t.Helper()
	cluster := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	member := cluster.Members[0]
	disk := onSmallDisk(t, member, setting(member.Environment(), "DATA"), 160)
	line := testenv.StartProxy(t, member.Addr())
	p := startFaulty(t, "FENCELOCK_STORE=etcd://"+line.Addr()+"/faults")
	return p, append(lineFaults(line),
		fault{name: "kill -9, restarted", begin: member.Kill, end: member.Restart},
		fault{name: "SIGSTOP", begin: member.Freeze, end: member.Thaw},
		fault{
			name: "database full (alarm NOSPACE)", says: "database space exceeded",
			begin: func() { raiseNoSpace(t, member.Addr()) }, end: func() { cluster.Ctl("alarm", "disarm") },
		},
		fault{
			name: "all keys deleted", within: lost,
			begin: func() { cluster.Ctl("del", "--prefix", "/faults/") }, end: func() {},
		},
		fullUnder(t, member, disk, func() {}))
}

// etcdUserFaults returns the faults of an etcd that requires a password.
func etcdUserFaults(t *testing.T) (*process, []fault) {
	t.Helper()
	cluster := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	member := cluster.Members[0]
	ctl := func(commands ...string) func() {
		return func() {
			for _, command := range commands {
				cluster.Ctl(append([]string{"--user", "root:secret"}, strings.Fields(command)...)...)
			}
		}
	}
	for _, command := range []string{
		"user add root:secret", "user grant-role root root", "user add locks:right", "role add locks", //nolint:dupword // a user and a role
		"role grant-permission locks --prefix=true readwrite /faults/", "user grant-role locks locks", "auth enable", //nolint:dupword // the same
	} {
		cluster.Ctl(strings.Fields(command)...)
	}
	p := startFaulty(t, "FENCELOCK_STORE=etcd://locks:right@"+member.Addr()+"/faults")
	user := func(password string) func() {
		return ctl("user delete locks", "user add locks:"+password, "user grant-role locks locks") //nolint:dupword // a user and a role
	}
	return p, []fault{
		{name: "kill -9, restarted: it knows no login", begin: member.Kill, end: member.Restart},
		{name: "the user's password changed", says: "authentication failed", begin: user("wrong"), end: user("right")},
		{
			name: "the user's role taken away", says: "etcdctl role grant-permission",
			begin: ctl("user revoke-role locks locks"), end: ctl("user grant-role locks locks"), //nolint:dupword // a user and a role
		},
	}
}

// raiseNoSpace raises the alarm that etcd raises by itself when its quota is used up.
func raiseNoSpace(t *testing.T, addr string) {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	maintenance := etcdserverpb.NewMaintenanceClient(conn)
	status, err := maintenance.Status(t.Context(), &etcdserverpb.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = maintenance.Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: status.Header.MemberId, Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	if err != nil {
		t.Fatal(err)
	}
}

func zookeeperFaults(t *testing.T) (*process, []fault) {
	t.Helper()
	server := testenv.StartZooKeeper(t, 1)[0]
	disk := onSmallDisk(t, server, setting(server.Environment(), "DATA"), 100)
	line := testenv.StartProxy(t, server.Addr())
	p := startFaulty(t, "FENCELOCK_STORE=zookeeper://"+line.Addr()+"/faults")
	return p, append(lineFaults(line),
		fault{name: "kill -9, restarted", within: 15 * time.Second, begin: server.Kill, end: server.Restart},
		fault{name: "SIGSTOP", begin: server.Freeze, end: server.Thaw},
		fault{
			name: "kill -9, restarted without its data", within: lost + 15*time.Second,
			begin: func() { server.Kill(); server.Wipe() }, end: server.Restart,
		},
		fullUnder(t, server, disk, func() {}))
}

func postgresFaultsAll(t *testing.T) (*process, []fault) {
	t.Helper()
	f := newPostgresFaults(t)
	disk := onSmallDisk(t, f.pg, f.text(`SHOW data_directory`)+"/pg_wal", 64)
	return f.p, append(f.all(), fullUnder(t, f.pg, disk, f.useUpSegments))
}

// text returns the single value that a query finds.
func (f *postgresFaults) text(query string) (value string) {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.pg.URL())
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(f.t.Context())) }()
	if err := conn.QueryRow(f.t.Context(), query).Scan(&value); err != nil {
		f.t.Fatal(err)
	}
	return value
}

// useUpSegments writes until Postgres needs a new WAL file. It makes some files ahead of time.
func (f *postgresFaults) useUpSegments() {
	conn, err := pgx.Connect(f.t.Context(), f.pg.URL())
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(f.t.Context())) }()
	for range 20 {
		if _, err := conn.Exec(f.t.Context(), `SELECT pg_logical_emit_message(true, 'x', 'x'), pg_switch_wal()`); err != nil {
			return
		}
	}
	f.t.Error("Postgres found room for 20 files of WAL")
}
