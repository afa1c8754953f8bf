package config

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// clearEnvironment removes the variables of fencelock from the test's own environment.
func clearEnvironment(t *testing.T) {
	t.Helper()
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "FENCELOCK_") {
			continue
		}
		t.Setenv(name, "") // for the sake of putting it back
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConfigDefaults(t *testing.T) {
	clearEnvironment(t)
	// Somebody else's variables, which must not be taken for ours.
	t.Setenv("DATABASE_URL", "postgres://somebody.else/db")
	t.Setenv("LISTEN", "0.0.0.0:1")
	t.Setenv("DATA", "/somewhere/else")
	got, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Listen: "127.0.0.1:8080", AdminListen: "127.0.0.1:8081", Data: "fencelock.db", Recovery: "auto",
		MaxTTL: time.Minute, DefaultTTL: 30 * time.Second, NodeTimeout: 2 * time.Second, NodeDownAfter: 200 * time.Millisecond,
		MaxWaiters: 10000, MaxRecords: 100000, MaxRecordBytes: 256 << 20, CounterTTL: 24 * time.Hour, OIDCClaim: "sub", Console: true, Tracing: "off", LogLevel: slog.LevelInfo,
	}
	if !reflect.DeepEqual(got, want) || !got.OpenAdmin() {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestConfigOfEverything(t *testing.T) {
	clearEnvironment(t)
	for name, value := range map[string]string{
		"LISTEN": "0.0.0.0:0", "ADMIN_LISTEN": "[::]:9", "REDIS_ADDRS": "a:1, rediss://u:p%2C@b:2/3 ,[::1]:6379/4; c:1", "DATABASE_URL": "postgres://u:p@h/d",
		"BOOTSTRAP": "new", "RECOVERY": "manual", "MAX_TTL": "2s", "MAX_HOLD": "3s", "NODE_TIMEOUT": "100ms", "NODE_DOWN_AFTER": "300ms", "MAX_WAITERS": "1", "MAX_RECORDS": "2", "MAX_RECORD_BYTES": "3",
		"ACCESS_FILE": "a", "TLS_CERT_FILE": "b", "TLS_KEY_FILE": "c", "TLS_CLIENT_CA_FILE": "d",
		"OIDC_ISSUER": "https://issuer", "OIDC_AUDIENCE": "e", "OIDC_CLAIM": "email", "PROOF_KEY_FILE": "f", "PROOF_REQUIRED": "true",
		"COUNTER_TTL": "2s", "INSECURE": "true", "TRACING": "otlp", "ALLOWED_HOSTS": "locks.example.com, 10.0.0.7", "METRICS_PREFIXES": "orders/,carts/", "LOG_FORMAT": "json", "LOG_LEVEL": "Debug",
	} {
		t.Setenv("FENCELOCK_"+name, value)
	}
	got, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Listen: "0.0.0.0:0", AdminListen: "[::]:9",
		RedisAddrs:  "a:1, rediss://u:p%2C@b:2/3 ,[::1]:6379/4; c:1",
		RedisSets:   [][]string{{"redis://a:1", "rediss://u:p%2C@b:2/3", "redis://[::1]:6379/4"}, {"redis://c:1"}},
		DatabaseURL: "postgres://u:p@h/d", Bootstrap: "new", Recovery: "manual", MaxTTL: 2 * time.Second,
		DefaultTTL: 2 * time.Second, // not above the maximum, although it was not set
		AccessFile: "a", OIDCIssuer: "https://issuer", OIDCAudience: "e", OIDCClaim: "email",
		TLSCertFile: "b", TLSKeyFile: "c", TLSClientCAFile: "d", ProofKeyFile: "f", ProofRequired: true,
		MaxHold: 3 * time.Second, NodeTimeout: 100 * time.Millisecond, NodeDownAfter: 300 * time.Millisecond, MaxWaiters: 1, MaxRecords: 2, MaxRecordBytes: 3, CounterTTL: 2 * time.Second,
		Console: true, AllowedHosts: []string{"locks.example.com", "10.0.0.7"}, MetricsPrefixes: []string{"orders/", "carts/"},
		Insecure: true, Tracing: "otlp", LogFormat: "json", LogLevel: slog.LevelDebug,
	}
	if !reflect.DeepEqual(got, want) || !got.OpenAdmin() {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	t.Setenv("FENCELOCK_NODE_TIMEOUT", "")
	if got, err = Load(); err != nil || got.NodeTimeout != 200*time.Millisecond {
		t.Errorf("the node timeout is %s (%v): with Redis it is a tenth of the longest TTL", got.NodeTimeout, err)
	}
	t.Setenv("FENCELOCK_DATA", "own.db")
	if got, err = Load(); err != nil || got.Data != "own.db" {
		t.Errorf("data is %q (%v): with Redis it is used when it is set", got.Data, err)
	}
}

func TestAllBadValuesAreNamedAtOnce(t *testing.T) {
	clearEnvironment(t)
	bad := map[string]string{
		"LISTEN": "8080", "ADMIN_LISTEN": "127.0.0.1:70000", "BOOTSTRAP": "old", "RECOVERY": "maybe", "MAX_TTL": "50ms",
		"DEFAULT_TTL": "1000h", "MAX_HOLD": "-1s", "NODE_TIMEOUT": "5", "NODE_DOWN_AFTER": "11s", "MAX_WAITERS": "0", "MAX_RECORDS": "0", "MAX_RECORD_BYTES": "-1", "COUNTER_TTL": "soon", "INSECURE": "yes",
		"LOG_FORMAT": "xml", "LOG_LEVEL": "loud", "CONSOLE": "maybe", "TRACING": "on", "ALLOWED_HOSTS": "https://a", "METRICS_PREFIXES": "a,a",
	}
	for name, value := range bad {
		t.Setenv("FENCELOCK_"+name, value)
	}
	t.Setenv("FENCELOCK_REDIS_ADDRS", "redis://:hunter2@a:1,b:2")
	t.Setenv("FENCELOCK_DATABASE_URL", "sqlite://u:hunter2@h/d")
	_, err := Load()
	if err == nil {
		t.Fatal("accepted")
	}
	for name, value := range bad {
		if part := "FENCELOCK_" + name + "=\"" + value + "\": "; !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not named:\n%v", part, err)
		}
	}
	for _, name := range []string{"REDIS_ADDRS", "DATABASE_URL"} {
		if part := "FENCELOCK_" + name + " (value not shown): "; !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not named:\n%v", part, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a password is shown:\n%v", err)
	}
	if lines := strings.Count(err.Error(), "\n"); lines != len(bad)+2 {
		t.Errorf("%d lines for %d bad values:\n%v", lines, len(bad)+2, err)
	}
}

// A bad variable has one line in the message, even if its replacement fails, too. Afterwards the variable still has
// its value for the next reader. An empty variable counts as not set.
func TestBadAndEmptyValues(t *testing.T) {
	clearEnvironment(t)
	t.Setenv("FENCELOCK_MAX_TTL", "10s")
	t.Setenv("FENCELOCK_DEFAULT_TTL", "soon")
	for range 2 {
		if _, err := Load(); err == nil || strings.Count(err.Error(), "\n") != 1 || !strings.Contains(err.Error(), `FENCELOCK_DEFAULT_TTL="soon": must be a duration`) {
			t.Errorf("one mistake is told as: %v", err)
		}
	}
	for _, v := range Variables() {
		t.Setenv(v.Name, "")
	}
	t.Setenv("FENCELOCK_MAX_TTL", "10s")
	if cfg, err := Load(); err != nil || cfg.DefaultTTL != 10*time.Second || cfg.Data != "fencelock.db" || !cfg.Console || cfg.OIDCClaim != "sub" {
		t.Errorf("%+v, %v", cfg, err)
	}
}

// Settings that are not set follow the longest lease, so they cause no error.
func TestDefaultsFollowTheLongestLease(t *testing.T) {
	clearEnvironment(t)
	t.Setenv("FENCELOCK_MAX_TTL", "24h")
	for hold, good := range map[string]bool{"0": true, "24h": true, "23h": false, "-1s": false} {
		t.Setenv("FENCELOCK_MAX_HOLD", hold)
		if _, err := Load(); (err == nil) != good {
			t.Errorf("a longest hold of %s: %v", hold, err)
		}
	}
	clearEnvironment(t)
	t.Setenv("FENCELOCK_MAX_TTL", "10s")
	t.Setenv("FENCELOCK_DEFAULT_TTL", "30s")
	if _, err := Load(); err == nil {
		t.Error("a default TTL above the longest was taken, although somebody said it")
	}
	clearEnvironment(t)
	t.Setenv("FENCELOCK_MAX_TTL", "x")
	if _, err := Load(); err == nil || strings.Count(err.Error(), "FENCELOCK_") != 1 {
		t.Errorf("one mistake is told as: %v", err)
	}
}

func TestAddressesThatNeedInsecure(t *testing.T) {
	for address, loopback := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true,
		"0.0.0.0:1": false, ":1": false, "[::]:1": false, "10.0.0.1:1": false, "example.org:1": false,
	} {
		for _, name := range []string{"FENCELOCK_LISTEN", "FENCELOCK_ADMIN_LISTEN"} {
			clearEnvironment(t)
			t.Setenv(name, address)
			_, err := Load()
			if (err == nil) != loopback || err != nil && (!strings.Contains(err.Error(), "FENCELOCK_INSECURE=true") || !strings.Contains(err.Error(), "FENCELOCK_ACCESS_FILE")) {
				t.Errorf("%s=%s: %v", name, address, err)
			}
			t.Setenv("FENCELOCK_ACCESS_FILE", "access")
			cfg, err := Load()
			if err != nil || cfg.OpenAdmin() != (name == "FENCELOCK_LISTEN" || loopback) {
				t.Errorf("%s=%s with access control: the admin listener is open: %t, %v", name, address, cfg.OpenAdmin(), err)
			}
			t.Setenv("FENCELOCK_ACCESS_FILE", "")
			t.Setenv("FENCELOCK_INSECURE", "true")
			if _, err := Load(); err != nil {
				t.Errorf("%s=%s, insecure: %v", name, address, err)
			}
		}
	}
}

// TestHalfOfASecurity: settings of security that would have no effect, or another one than the operator meant, are
// refused.
func TestHalfOfASecurity(t *testing.T) {
	for setting, part := range map[string]string{
		"TLS_CERT_FILE=c":                     "go together",
		"TLS_KEY_FILE=k":                      "go together",
		"TLS_CLIENT_CA_FILE=ca ACCESS_FILE=a": "certificates are shown over TLS only",
		"TLS_CLIENT_CA_FILE=ca TLS_CERT_FILE=c TLS_KEY_FILE=k": "needs FENCELOCK_ACCESS_FILE",
		"OIDC_ISSUER=https://i ACCESS_FILE=a":                  "FENCELOCK_OIDC_AUDIENCE",
		"OIDC_ISSUER=https://i OIDC_AUDIENCE=x":                "needs FENCELOCK_ACCESS_FILE",
		"OIDC_ISSUER=http://i OIDC_AUDIENCE=x ACCESS_FILE=a":   "must be a URL such as https://",
		"PROOF_REQUIRED=true":                                  "needs FENCELOCK_PROOF_KEY_FILE",
		"OIDC_AUDIENCE=x ACCESS_FILE=a":                        "only with FENCELOCK_OIDC_ISSUER",
	} {
		clearEnvironment(t)
		for assignment := range strings.FieldsSeq(setting) {
			name, value, _ := strings.Cut(assignment, "=")
			t.Setenv("FENCELOCK_"+name, value)
		}
		if _, err := Load(); err == nil || !strings.Contains(err.Error(), part) || strings.Count(err.Error(), "\n") != 1 {
			t.Errorf("%s: %v", setting, err)
		}
	}
}

func TestRedisAddrs(t *testing.T) {
	for value, good := range map[string]bool{
		"a:1": true, "a:1,b:1,c:1": true, "redis://a": true, "redis://u:p@a:1/2": true, "a:1,b:1,c:1,d:1,e:1": true,
		"a:1,b:1": false, "a": false, ":1": false, "a:x": false, "a:70000": false, "http://a:1": false, "redis://": false, "a:1,": false,
		"a:1;b:1,c:1,d:1": true, "a:1;": false, "a:1;b:1,c:1": false, "u:p@a:1": false, "redis://:p/w@a:1": false, "a:1/15": true, "a:1/x": false, "a/1": false, "a:1/": false, "a:1/2?db=3": false, "redis://a:70000": false,
	} {
		clearEnvironment(t)
		t.Setenv("FENCELOCK_REDIS_ADDRS", value)
		if _, err := Load(); (err == nil) != good {
			t.Errorf("%q: %v", value, err)
		}
	}
}

func TestStore(t *testing.T) {
	clearEnvironment(t)
	t.Setenv("FENCELOCK_STORE", "postgres://u:p@a:1,b:2/d")
	cfg, err := Load()
	if err != nil || cfg.Data != "" || cfg.DatabaseURL != cfg.Store || cfg.NodeTimeout != 2*time.Second {
		t.Errorf("%+v, %v: the guarded records are beside the locks", cfg, err)
	}
	t.Setenv("FENCELOCK_DATABASE_URL", "postgres://u:p@c/d")
	if cfg, err = Load(); err != nil || cfg.DatabaseURL != "postgres://u:p@c/d" {
		t.Errorf("%+v, %v: the guarded records have a database of their own", cfg, err)
	}
	clearEnvironment(t)
	t.Setenv("FENCELOCK_STORE", "zookeeper://u:p@a:1,b:2/locks")
	if cfg, err = Load(); err != nil || cfg.Data != "" || cfg.DatabaseURL != "" {
		t.Errorf("%+v, %v: ZooKeeper keeps no guarded records", cfg, err)
	}
	for setting, part := range map[string]string{
		"STORE=postgres://:hunter2@h/d REDIS_ADDRS=a:1":   "two places",
		"STORE=postgres://:hunter2@h/d DATA=fencelock.db": "two places",
		"STORE=mysql://:hunter2@h/d":                      "must be a URL such as postgres://",
		"STORE=zk://h:2379":                               "or etcd://a:2379,b:2379",
	} {
		clearEnvironment(t)
		for assignment := range strings.FieldsSeq(setting) {
			name, value, _ := strings.Cut(assignment, "=")
			t.Setenv("FENCELOCK_"+name, value)
		}
		_, err := Load()
		if err == nil || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), "FENCELOCK_STORE (value not shown)") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", setting, err)
		}
	}
}

func TestSecretsFromFiles(t *testing.T) {
	clearEnvironment(t)
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte("postgres://u:p@h/d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FENCELOCK_DATABASE_URL_FILE", path)
	cfg, err := Load()
	if err != nil || cfg.DatabaseURL != "postgres://u:p@h/d" {
		t.Errorf("%q, %v", cfg.DatabaseURL, err)
	}
	t.Setenv("FENCELOCK_DATABASE_URL", "postgres://x/y")
	if _, err := Load(); err == nil || !strings.Contains(err.Error(), "not both") {
		t.Errorf("both were accepted: %v", err)
	}
	clearEnvironment(t)
	t.Setenv("FENCELOCK_REDIS_ADDRS_FILE", path)
	if _, err := Load(); err == nil || !strings.Contains(err.Error(), "in the file: set 1 has an address, number 1, that is not host:port") || strings.Contains(err.Error(), "u:p@h") {
		t.Errorf("a file with something else: %v", err)
	}
	clearEnvironment(t)
	t.Setenv("FENCELOCK_REDIS_ADDRS_FILE", path+".missing")
	if _, err := Load(); err == nil || !strings.Contains(err.Error(), "FENCELOCK_REDIS_ADDRS_FILE") {
		t.Errorf("a missing file was accepted: %v", err)
	}
}

func TestMisspeltVariables(t *testing.T) {
	clearEnvironment(t)
	t.Setenv("FENCELOCK_URL", "x")
	t.Setenv("FENCELOCK_LITSEN", "x")
	t.Setenv("FENCELOCK_MAXTTL", "x")
	t.Setenv("FENCELOCK_SERVICE_HOST", "10.0.0.1") // Kubernetes sets these two
	t.Setenv("FENCELOCK_PORT_8080_TCP", "tcp://10.0.0.1:8080")
	found := MisspeltVariables([]string{"FENCELOCK_URL"})
	slices.SortFunc(found, func(a, b Misspelt) int { return strings.Compare(a.Name, b.Name) })
	want := []Misspelt{{"FENCELOCK_LITSEN", "FENCELOCK_LISTEN"}, {"FENCELOCK_MAXTTL", "FENCELOCK_MAX_TTL"}}
	if !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
}

func TestHelpListsEveryVariable(t *testing.T) {
	for _, v := range Variables() {
		if v.Meaning == "" || v.Group == "" {
			t.Errorf("%s has no meaning, or is in no group", v.Name)
		}
		if !strings.Contains(Help(), "\n  "+v.Name) {
			t.Errorf("the help does not list %s", v.Name)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"kitten", "sitting", 3}, {"LISTEN", "LITSEN", 2}, {"same", "same", 0}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance of %q and %q is %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestMetricsPrefixesAreChecked(t *testing.T) {
	clearEnvironment(t)
	for _, bad := range []string{",", "a,,b", "a,a", strings.Repeat("x,", 30) + "y"} {
		t.Setenv("FENCELOCK_METRICS_PREFIXES", bad)
		if _, err := Load(); err == nil || !strings.Contains(err.Error(), "FENCELOCK_METRICS_PREFIXES") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	t.Setenv("FENCELOCK_METRICS_PREFIXES", "orders/,carts/")
	if cfg, err := Load(); err != nil || !slices.Equal(cfg.MetricsPrefixes, []string{"orders/", "carts/"}) {
		t.Errorf("%v, %v", cfg.MetricsPrefixes, err)
	}
}
