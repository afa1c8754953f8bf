package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/chaos"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/check"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
)

// checks runs fencelock check with output for people and with JSON, and returns both outputs.
func checks(t *testing.T, code int, env ...string) (said, check.Report) {
	t.Helper()
	var report check.Report
	env = append(anyPorts(), env...)
	asJSON := finish(t, command(t, env, "check", "-o", "json"), "")
	if err := json.Unmarshal([]byte(asJSON.out), &report); err != nil {
		t.Fatalf("%v: %+v", err, asJSON)
	}
	got := finish(t, command(t, env, "check"), "")
	if got.code != code || asJSON.code != code {
		t.Errorf("code %d and %d, want %d:\n%s%s", got.code, asJSON.code, code, got.out, got.errOut)
	}
	return got, report
}

// finds fails unless the report has such a finding.
func finds(t *testing.T, report check.Report, level check.Level, subject, text string) {
	t.Helper()
	for _, f := range report.Findings {
		if f.Level == level && strings.Contains(f.Subject, subject) && strings.Contains(f.Text, text) && f.Do != "" {
			return
		}
	}
	t.Errorf("nothing %s of %q that says %q in %+v", level, subject, text, report.Findings)
}

// healthyNode is the configuration of a Redis about which check has nothing to report.
func healthyNode() []testenv.RedisOption {
	return []testenv.RedisOption{testenv.WithPersistence(testenv.PersistAOFEverysec), testenv.WithConfig("maxmemory 100mb", "maxmemory-policy noeviction")}
}

func TestCheckOfTheVariables(t *testing.T) {
	t.Parallel()
	got, report := checks(t, 1, "FENCELOCK_MAX_TLT=5s", "FENCELOCK_MAX_TTL=5", "FENCELOCK_LISTEN=0.0.0.0:8080",
		"FENCELOCK_URL=http://127.0.0.1:1") // which a server does not read, and is not misspelt
	finds(t, report, check.Wrong, "FENCELOCK_MAX_TLT", "there is no such variable")
	finds(t, report, check.Wrong, "FENCELOCK_MAX_TTL", "must be a duration such as")
	finds(t, report, check.Wrong, "FENCELOCK_LISTEN", "is not a loopback address")
	got.wants(t, "check", 1, "did you mean FENCELOCK_MAX_TTL?", "")
	got.wants(t, "check", 1, "looked at the variables: 3 wrong, 0 risky\n", "")
	finish(t, command(t, nil, "check", "now"), "").wants(t, "an argument", cli.ExitUsage, "", "takes no arguments")

	data := filepath.Join(t.TempDir(), "fencelock.db")
	_, report = checks(t, cli.ExitRisky, "FENCELOCK_DATA="+data, "FENCELOCK_LISTEN=0.0.0.0:8080", "FENCELOCK_INSECURE=true")
	finds(t, report, check.Risky, "FENCELOCK_INSECURE", "every client that reaches 0.0.0.0:8080")
	finds(t, report, check.Risky, "FENCELOCK_REDIS_ADDRS", "the locks are in one file")
	if _, err := os.Stat(data); err == nil {
		t.Error("the check made the embedded file")
	}
}

// The check of a good configuration reports only that the test runs on one machine, and changes nothing.
func TestCheckOfWhatIsGood(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3, healthyNode()...)
	pg := testenv.StartPostgres(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	serverFor(t, cert, key, 90*24*time.Hour)
	env := []string{
		redisAddrs(nodes), "FENCELOCK_DATABASE_URL=" + pg.OwnerURL(), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_TIMEOUT=2s", "FENCELOCK_NODE_DOWN_AFTER=2s",
		"FENCELOCK_TLS_CERT_FILE=" + cert, "FENCELOCK_TLS_KEY_FILE=" + key, "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0",
	}
	got, report := checks(t, cli.ExitRisky, env...)
	if report.Count(check.Wrong) != 0 || len(report.Findings) != 1 {
		t.Errorf("findings: %+v", report.Findings)
	}
	finds(t, report, check.Risky, "FENCELOCK_REDIS_ADDRS", "3 of 3 nodes are on the host 127.0.0.1")
	got.wants(t, "check", cli.ExitRisky, "3 of 3 Redis nodes, Postgres ", "")
	for _, n := range nodes {
		if size := n.Client().DBSize(t.Context()).Val(); size != 0 {
			t.Errorf("%d keys are on a node", size)
		}
		if stats := n.Client().Info(t.Context(), "commandstats").Val(); strings.Contains(stats, "cmdstat_set") || strings.Contains(stats, "script|load") {
			t.Errorf("the check wrote: %s", stats)
		}
	}
	if made := ask[bool](t, pg.URL(), `SELECT to_regnamespace('fencing') IS NOT NULL`); made {
		t.Error("the check made the schema")
	}
	// The same while a server runs with it, and its schema is there.
	startBeside(t, env)
	if _, report = checks(t, cli.ExitRisky, env...); len(report.Findings) != 1 {
		t.Errorf("beside a server: %+v", report.Findings)
	}
}

// Over TLS most mistakes are in certificates. For each of them check says what to do, which is never to start the
// node.
func TestCheckOfRedisOverTLS(t *testing.T) {
	testenv.Long(t, "a node over TLS that check does not understand")
	t.Parallel()
	good := testenv.StartRedis(t, append(healthyNode(), testenv.WithTLS(), testenv.WithPassword("s3cret"), testenv.WithConfig("bind 127.0.0.1 127.1.2.3"))...)
	wantsCertificate := testenv.StartRedis(t, testenv.WithTLS(), testenv.WithConfig("maxmemory 100mb"))
	if err := wantsCertificate.Client().ConfigSet(t.Context(), "tls-auth-clients", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	plain := testenv.StartRedis(t, testenv.WithPassword("s3cret"))
	overTLS := func(r *testenv.Redis) string { return strings.Replace(r.URL(), "redis://", "rediss://", 1) }
	trusted := "SSL_CERT_FILE=" + good.CAFile()
	for name, c := range map[string]struct {
		env  []string
		code int
		do   string // part of what to do
	}{
		"an unknown authority":    {[]string{"FENCELOCK_REDIS_ADDRS=" + good.URL()}, 1, "?ca="},
		"its authority":           {[]string{"FENCELOCK_REDIS_ADDRS=" + good.URL(), trusted}, cli.ExitRisky, "three or five"},
		"no check":                {[]string{"FENCELOCK_REDIS_ADDRS=" + good.URL() + "?skip_verify=true"}, cli.ExitRisky, "remove that"},
		"another name":            {[]string{"FENCELOCK_REDIS_ADDRS=" + strings.Replace(good.URL(), "127.0.0.1", "127.1.2.3", 1), trusted}, 1, "use a name of the certificate"},
		"without TLS":             {[]string{"FENCELOCK_REDIS_ADDRS=" + strings.Replace(good.URL(), "rediss://", "redis://", 1)}, 1, "use rediss://"},
		"TLS where there is none": {[]string{"FENCELOCK_REDIS_ADDRS=" + overTLS(plain)}, 1, "use redis://"},
		"client certificates":     {[]string{"FENCELOCK_REDIS_ADDRS=" + wantsCertificate.URL(), "SSL_CERT_FILE=" + wantsCertificate.CAFile()}, 1, "?cert= and &key="},
		"a client certificate":    {[]string{"FENCELOCK_REDIS_ADDRS=" + wantsCertificate.URL() + "?ca=" + wantsCertificate.CAFile() + "&cert=" + wantsCertificate.CAFile() + "&key=" + wantsCertificate.KeyFile()}, cli.ExitRisky, "three or five"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, report := checks(t, c.code, c.env...)
			if !slices.ContainsFunc(report.Findings, func(f check.Finding) bool { return strings.Contains(f.Do, c.do) }) {
				t.Errorf("nobody says %q:\n%s", c.do, got.out)
			}
			if strings.Contains(got.out, "s3cret") {
				t.Error("a password is shown")
			}
		})
	}
}

// A server that does not start for another reason still names a misspelt variable.
func TestServeNamesAMisspeltVariableBesideAnotherError(t *testing.T) {
	t.Parallel()
	code, said := outcome(t, []string{"FENCELOCK_MAXTTL=10s", "FENCELOCK_DEFAULT_TTL=nonsense"}, "serve")
	if code != cli.ExitUsage || !strings.Contains(said, "FENCELOCK_DEFAULT_TTL") || !strings.Contains(said, "did you mean FENCELOCK_MAX_TTL?") {
		t.Errorf("code %d:\n%s", code, said)
	}
}

func TestCheckOfRedis(t *testing.T) {
	t.Parallel()
	evicts := testenv.StartRedis(t, testenv.WithConfig("maxmemory 100mb", "maxmemory-policy allkeys-lru"))
	shared := testenv.StartRedis(t, append(healthyNode(), testenv.WithConfig("maxmemory 3mb"))...)
	shared.Client().Set(t.Context(), "their key", "value", 0)
	locked := testenv.StartRedis(t, append(healthyNode(), testenv.WithUser("weak", "secret-password", "+info", "+time", "+dbsize", "+exists", "~*"))...)
	away := testenv.StartRedis(t)
	away.Kill()
	addrs := []string{evicts.Addr(), shared.Addr(), shared.Addr() + "/1", locked.URL(), away.Addr()}
	got, report := checks(t, 1, "FENCELOCK_REDIS_ADDRS="+strings.Join(addrs, ","), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_TIMEOUT=1ms", "FENCELOCK_MAX_TTL=10s")
	finds(t, report, check.Wrong, evicts.Addr(), "maxmemory-policy is allkeys-lru")
	finds(t, report, check.Wrong, evicts.Addr(), "FENCELOCK_BOOTSTRAP=new skips the wait")
	finds(t, report, check.Wrong, shared.Addr(), "holds 1 keys and no mark of this service")
	finds(t, report, check.Wrong, shared.Addr()+"/1", "is the same server as "+shared.Addr())
	finds(t, report, check.Wrong, locked.Addr(), "NOPERM")
	finds(t, report, check.Wrong, away.Addr(), "it refuses connections, so no server listens there")
	finds(t, report, check.Risky, "FENCELOCK_REDIS_ADDRS", "if it fails, the quorum is lost")
	if strings.Contains(got.out, "secret-password") {
		t.Error("a password is shown")
	}
	clustered := testenv.StartRedis(t, testenv.WithConfig("cluster-enabled yes"))
	_, report = checks(t, 1, "FENCELOCK_REDIS_ADDRS="+clustered.Addr())
	finds(t, report, check.Wrong, clustered.Addr(), "it runs in cluster mode")
	for _, r := range []*testenv.Redis{evicts, shared} {
		r.Kill()
	}
	_, report = checks(t, 1, "FENCELOCK_REDIS_ADDRS="+strings.Join(addrs, ","))
	finds(t, report, check.Wrong, "FENCELOCK_REDIS_ADDRS", "a quorum is 3: nothing can be granted")
}

// check compares the data on the nodes with the configuration.
func TestCheckOfTheCluster(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 6, healthyNode()...)
	five, sixth := [][]*testenv.Redis{nodes[:5]}, [][]*testenv.Redis{nodes[5:]}
	server := start(t, append(changeOf(five, nil), "FENCELOCK_BOOTSTRAP=new")...)
	got, report := checks(t, cli.ExitRisky, changeOf(five, nil)...)
	finds(t, report, check.Risky, "FENCELOCK_REDIS_ADDRS", "if it fails, the quorum is lost")
	got.wants(t, "check", cli.ExitRisky, ": 0 wrong, 1 risky", "")
	_, report = checks(t, 1, changeOf([][]*testenv.Redis{nodes[:3]}, nil)...)
	finds(t, report, check.Wrong, "FENCELOCK_REDIS_ADDRS", "set 1 names 3 nodes, and these belong to a cluster with another list: "+nodes[0].Addr()+"/0 (of 5 nodes)")
	_, report = checks(t, 1, append(changeOf(five, nil), "FENCELOCK_MAX_TTL=20s")...)
	finds(t, report, check.Wrong, "FENCELOCK_MAX_TTL", "it is 20s, and the longest that any server of this cluster has had is 10s")
	other := start(t, append(changeOf(five, nil), "FENCELOCK_MAX_TTL=20s")...)
	other.until("it says that the longest TTL is another", func() bool {
		return strings.Contains(other.Logs(), "the longest TTL of this server is above that of the cluster")
	})
	other.Signal(syscall.SIGTERM)
	_ = other.exit()

	env := append(changeOf(five, append(slices.Clone(five), sixth...)), "FENCELOCK_MAX_TTL=20s")
	server.Signal(syscall.SIGTERM)
	_ = server.exit()
	start(t, append(slices.Clone(env), "FENCELOCK_BOOTSTRAP=new")...)
	runSets(t, env, printed(t, env, "apply")...).wants(t, "apply", 0, "in force", "")
	got, report = checks(t, cli.ExitRisky, env...)
	finds(t, report, check.Risky, "FENCELOCK_REDIS_ADDRS", "if it fails, the quorum is lost")
	if n := strings.Count(got.out, nodes[0].Addr()); n > 1 {
		t.Errorf("a node is named %d times in\n%s", n, got.out)
	}
	_, report = checks(t, 1, append(changeOf(five, nil), "FENCELOCK_MAX_TTL=20s")...)
	finds(t, report, check.Wrong, "FENCELOCK_REDIS_ADDRS", "set 1 belongs to a cluster with other node sets (generation 1)")
}

func TestCheckOfPorts(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	_, report := checks(t, 1, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "fencelock.db"), "FENCELOCK_LISTEN="+taken.Addr().String(), "FENCELOCK_ADMIN_LISTEN=203.0.113.1:80", "FENCELOCK_INSECURE=true")
	finds(t, report, check.Risky, "FENCELOCK_LISTEN", "is in use")
	finds(t, report, check.Wrong, "FENCELOCK_ADMIN_LISTEN", "nothing can listen on 203.0.113.1:80")
}

// check finds a node whose replies all come too late for a vote.
func TestCheckOfRoundTrips(t *testing.T) {
	t.Parallel()
	far := testenv.StartProxy(t, testenv.StartRedis(t, healthyNode()...).Addr())
	far.Delay(60 * time.Millisecond)
	_, report := checks(t, 1, "FENCELOCK_REDIS_ADDRS="+far.Addr(), "FENCELOCK_NODE_TIMEOUT=50ms")
	finds(t, report, check.Wrong, far.Addr(), "and a request waits 50ms: it has no vote")
}

// If a node is listed again in another order, check asks it once and prints its name once.
func TestCheckPrintsANameOnce(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 4) // of which several things are to be said
	got, report := checks(t, cli.ExitRisky, changeOf([][]*testenv.Redis{nodes[:3]}, [][]*testenv.Redis{{nodes[2], nodes[1], nodes[0]}, nodes[3:]})...)
	if report.Count(check.Wrong) != 0 {
		t.Errorf("findings: %+v", report.Findings)
	}
	finds(t, report, check.Risky, nodes[0].Addr(), "it has no maxmemory")
	finds(t, report, check.Risky, nodes[0].Addr(), "it keeps nothing on disk")
	if n := strings.Count(got.out, nodes[0].Addr()+"/0:"); n != 1 {
		t.Errorf("the name is printed %d times in\n%s", n, got.out)
	}
}

func TestCheckOfPostgres(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t) // which syncs nothing
	data := "FENCELOCK_DATA=" + filepath.Join(t.TempDir(), "fencelock.db")
	_, report := checks(t, 1, data, "FENCELOCK_DATABASE_URL="+pg.URL())
	finds(t, report, check.Wrong, postgresVariable, "fsync is off")
	finds(t, report, check.Risky, postgresVariable, "is a superuser")

	_, report = checks(t, 1, "FENCELOCK_STORE="+testenv.PgBouncer(t, pg.URL(), "transaction"))
	finds(t, report, check.Risky, "FENCELOCK_STORE", "only every 15s after a failure")

	name := "ascii_" + strings.ToLower(t.Name())
	change(t, pg.URL(), "CREATE DATABASE "+name+" ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	t.Cleanup(func() { change(t, pg.URL(), "DROP DATABASE "+name) })
	owner, err := url.Parse(pg.OwnerURL())
	if err != nil {
		t.Fatal(err)
	}
	owner.Path = "/" + name
	_, report = checks(t, 1, data, "FENCELOCK_DATABASE_URL="+owner.String())
	finds(t, report, check.Wrong, postgresVariable, "the database is in SQL_ASCII")
	finds(t, report, check.Wrong, postgresVariable, "may not create one")

	change(t, pg.URL(), "CREATE SCHEMA fencing", "CREATE FUNCTION fencing._attempt() RETURNS int LANGUAGE sql AS 'SELECT 1'", "CREATE TABLE fencing.version (version int)")
	_, report = checks(t, 1, data, "FENCELOCK_DATABASE_URL="+pg.OwnerURL())
	finds(t, report, check.Wrong, postgresVariable, "may not use it")
	change(t, pg.URL(), "GRANT USAGE ON SCHEMA fencing TO PUBLIC", "GRANT SELECT ON fencing.version TO PUBLIC")
	_, report = checks(t, 1, data, "FENCELOCK_DATABASE_URL="+pg.OwnerURL())
	finds(t, report, check.Wrong, postgresVariable, "the schema fencing is of version 0")

	_, report = checks(t, 1, "FENCELOCK_STORE="+owner.String())
	finds(t, report, check.Wrong, "FENCELOCK_STORE", "the database is in SQL_ASCII")
	finds(t, report, check.Wrong, "FENCELOCK_STORE", "there is no schema fencelock")

	got, report := checks(t, 1, data, "FENCELOCK_DATABASE_URL=postgres://owner:wrong-password@127.0.0.1:1/shop")
	finds(t, report, check.Wrong, postgresVariable, "the database refuses connections, so no server listens there")
	if strings.Contains(got.out, "wrong-password") {
		t.Error("a password is shown")
	}
}

const postgresVariable = "FENCELOCK_DATABASE_URL"

func TestCheckOfFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key, keys := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "proof.keys")
	access := filepath.Join(dir, "access.txt")
	tokenFor(t, access, "worker", "--read", "*")
	writeFile(t, keys, "k1 "+strings.Repeat("ab", 32)+"\n")
	serverFor(t, cert, key, 3*24*time.Hour)
	env := []string{
		"FENCELOCK_DATA=" + filepath.Join(dir, "fencelock.db"), "FENCELOCK_TLS_CERT_FILE=" + cert, "FENCELOCK_TLS_KEY_FILE=" + key,
		"FENCELOCK_PROOF_KEY_FILE=" + keys, "FENCELOCK_ACCESS_FILE=" + access,
	}
	for path, mode := range map[string]os.FileMode{cert: 0o644, key: 0o644, keys: 0o640, access: 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	_, report := checks(t, 1, env...)
	finds(t, report, check.Wrong, "FENCELOCK_TLS_KEY_FILE", "every user of this machine may read")
	finds(t, report, check.Wrong, "FENCELOCK_ACCESS_FILE", "every user of this machine may change")
	finds(t, report, check.Risky, "FENCELOCK_TLS_CERT_FILE", "in 2 days")
	if report.Count(check.Wrong) != 2 {
		t.Errorf("findings: %+v", report.Findings)
	}

	serverFor(t, cert, key, -time.Minute)
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	writeFile(t, access, "nonsense\n")
	_, report = checks(t, 1, env...)
	finds(t, report, check.Wrong, "FENCELOCK_TLS_CERT_FILE", "it expired on")
	finds(t, report, check.Wrong, "the access file and the key files", "FENCELOCK_ACCESS_FILE cannot be used")

	_, report = checks(t, 1, "FENCELOCK_DATA="+filepath.Join(dir, "nosuch", "fencelock.db"))
	finds(t, report, check.Wrong, "FENCELOCK_DATA", "does not exist")
}

// serverFor writes a certificate for 127.0.0.1, which is valid for so much longer, and its key.
func serverFor(t *testing.T, certFile, keyFile string, valid time.Duration) {
	t.Helper()
	cert, key := newAuthority(t).sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter: time.Now().Add(valid), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	writePair(t, certFile, keyFile, cert, key)
}

func writePair(t *testing.T, certFile, keyFile string, cert *x509.Certificate, key *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})))
	writeFile(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
}

// startBeside runs a server with this environment, without its settings of TLS, until it is ready.
func startBeside(t *testing.T, env []string) {
	t.Helper()
	var plain []string
	for _, v := range env {
		if !strings.HasPrefix(v, "FENCELOCK_TLS_") && !strings.HasPrefix(v, "FENCELOCK_ADMIN") {
			plain = append(plain, v)
		}
	}
	p := start(t, plain...)
	p.untilAnswer(404, "GET", "/guarded/nosuch", "") // the schema is there
}

func ask[T any](t *testing.T, url, sql string) (v T) {
	t.Helper()
	onDatabase(t, url, func(ctx context.Context, conn *pgx.Conn) error { return conn.QueryRow(ctx, sql).Scan(&v) })
	return v
}

func change(t *testing.T, url string, statements ...string) {
	t.Helper()
	onDatabase(t, url, func(ctx context.Context, conn *pgx.Conn) error {
		for _, sql := range statements {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

func onDatabase(t *testing.T, url string, do func(context.Context, *pgx.Conn) error) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := do(ctx, conn); err != nil {
		t.Fatal(err)
	}
}

// check finds a node whose clock differs, and whether this machine's clock differs.
func TestCheckOfClocks(t *testing.T) {
	t.Parallel()
	testenv.NeedsServer(t)
	dir := t.TempDir()
	library, err := chaos.BuildShim(dir)
	if err != nil {
		t.Fatal(err)
	}
	clock, obeys := chaos.NewClock(t, dir, library, 1)
	late := testenv.StartRedis(t, append(healthyNode(), obeys)...)
	nodes := append(testenv.StartRedisN(t, 2, healthyNode()...), late)
	_, report := checks(t, cli.ExitRisky, redisAddrs(nodes), "FENCELOCK_NODE_TIMEOUT=2s", "FENCELOCK_NODE_DOWN_AFTER=2s")
	if len(report.Findings) != 1 { // one machine
		t.Errorf("clocks in step: %+v", report.Findings)
	}
	if err := clock.Jump(time.Minute); err != nil {
		t.Fatal(err)
	}
	_, report = checks(t, cli.ExitRisky, redisAddrs(nodes), "FENCELOCK_NODE_TIMEOUT=2s", "FENCELOCK_NODE_DOWN_AFTER=2s")
	finds(t, report, check.Risky, late.Addr(), "ahead of that of "+nodes[0].Addr()[:9])
	finds(t, report, check.Risky, "this machine's clock", "it differs by up to 1m0")
}

// Two different Redis behind one address have two sets of locks.
func TestCheckSeesTwoRedisBehindOneAddress(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 2, healthyNode()...)
	balancer := balance(t, nodes[0].Addr(), nodes[1].Addr())
	_, report := checks(t, cli.ExitFailed, "FENCELOCK_REDIS_ADDRS="+balancer)
	finds(t, report, check.Wrong, balancer, "different Redis servers respond at this address")
	_, report = checks(t, cli.ExitRisky, "FENCELOCK_REDIS_ADDRS="+balance(t, nodes[0].Addr())) // one node
	if report.Count(check.Wrong) > 0 {
		t.Errorf("one server behind a balancer: %+v", report.Findings)
	}
}

// balance returns an address whose connections lead to the targets in turn.
func balance(t *testing.T, targets ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for i := 0; ; i++ {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", targets[i%len(targets)])
			if err != nil {
				_ = from.Close()
				continue
			}
			for a, b := range map[net.Conn]net.Conn{from: to, to: from} {
				go func() {
					_, _ = io.Copy(a, b)
					_ = a.Close()
				}()
			}
		}
	}()
	return l.Addr().String()
}
