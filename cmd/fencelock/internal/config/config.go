// Package config reads the server's configuration from environment variables.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"
)

const prefix = "FENCELOCK"

// Config is the configuration and its only table: each variable has a field. The tags define what
// envconfig reads, --help and the reference page (group, desc), which values are refused (oneof, range;
// check handles what tags cannot express), and which values are never shown (secret). In a desc, {engines}
// stands for the table of package engine. The chart passes on any variable. The variables' names come from the
// fields (split_words), not from tags. With a tag, envconfig would also look for the name without its prefix,
// and DATABASE_URL often belongs to another program.
type Config struct {
	Listen             string        `split_words:"true" group:"Listeners" default:"127.0.0.1:8080" desc:"Address of the HTTP API, host:port. Port 0 picks a free one; the log line listening names it. An address that is not loopback needs FENCELOCK_ACCESS_FILE, or FENCELOCK_INSECURE=true."`
	AdminListen        string        `split_words:"true" group:"Listeners" default:"127.0.0.1:8081" desc:"Address of /metrics and /debug/pprof, host:port. On an address that is not loopback, FENCELOCK_ACCESS_FILE (read=* for metrics, admin=* for profiles) and the TLS files apply here too, unless FENCELOCK_INSECURE=true."`
	Data               string        `split_words:"true" group:"Storage" default:"fencelock.db" desc:"The embedded file. It is the lock node if neither FENCELOCK_REDIS_ADDRS nor FENCELOCK_STORE is set, and holds the guarded records if FENCELOCK_DATABASE_URL is not set. With FENCELOCK_REDIS_ADDRS there is no embedded file unless you set this."`
	RedisAddrs         string        `split_words:"true" group:"Storage" secret:"true" desc:"The Redis nodes: 1, 3, 5 or 7, each host:port, host:port/database, or a redis:// or rediss:// URL with user, password and database, separated by commas. Semicolons separate independent node sets; the resources are spread over them."`
	RedisAddrsFile     string        `split_words:"true" group:"Storage" desc:"A file with the value of FENCELOCK_REDIS_ADDRS. Read again when it changes: new connections use the new user and password."`
	RedisNextAddrs     string        `split_words:"true" group:"Storage" secret:"true" desc:"All the node sets that will replace those of FENCELOCK_REDIS_ADDRS, in the same form: see fencelock sets. Set it only during such a change."`
	RedisNextAddrsFile string        `split_words:"true" group:"Storage" desc:"A file with the value of FENCELOCK_REDIS_NEXT_ADDRS. Read again when it changes: new connections use the new user and password."`
	Store              string        `split_words:"true" group:"Storage" secret:"true" desc:"A replicated store for the locks, which several servers may share: {engines}. Not together with FENCELOCK_REDIS_ADDRS or FENCELOCK_DATA."`
	StoreFile          string        `split_words:"true" group:"Storage" desc:"A file with the value of FENCELOCK_STORE. Read again when it changes: new connections use the new user and password."`
	DatabaseURL        string        `split_words:"true" group:"Storage" secret:"true" desc:"Postgres or MariaDB for the guarded records, a postgres:// or mysql:// URL."`
	DatabaseURLFile    string        `split_words:"true" group:"Storage" desc:"A file with the value of FENCELOCK_DATABASE_URL. Read again when it changes: new connections use the new user and password."`
	Bootstrap          string        `split_words:"true" group:"Storage" oneof:"new" desc:"new: the cluster is new, so the first start does not wait for old leases to expire. It has an effect only while every node is reachable and empty. If the nodes have no persistence, unset it after the first start: otherwise a power cut that empties all of them would skip the wait."`
	Recovery           string        `split_words:"true" group:"Storage" oneof:"auto manual" default:"auto" desc:"What happens after a majority of the nodes lost its data: auto bootstraps the cluster again when the longest TTL has passed; manual leaves that to fencelock bootstrap."`
	MaxTTL             time.Duration `split_words:"true" group:"Leases" default:"60s" desc:"The longest TTL that a request may ask for, a duration from 100ms (250ms with FENCELOCK_STORE) to 24h. A restarted node is quarantined for the same time. All servers need the same value."`
	DefaultTTL         time.Duration `split_words:"true" group:"Leases" default:"30s" desc:"The TTL of a request without ttl_ms, a duration from 100ms (250ms with FENCELOCK_STORE) to FENCELOCK_MAX_TTL."`
	MaxHold            time.Duration `split_words:"true" group:"Leases" default:"0" desc:"How long one lease may be extended, a duration of at least FENCELOCK_MAX_TTL; 0 for no limit."`
	NodeTimeout        time.Duration `split_words:"true" group:"Storage" desc:"How long a request waits for a node, a duration from 1ms to a tenth of FENCELOCK_MAX_TTL (and never more than a tenth of the request's TTL). By default 1s, or a tenth of FENCELOCK_MAX_TTL if that is less. With the embedded file or FENCELOCK_STORE, which are the only node, up to half of both, and 2s by default."`
	NodeDownAfter      time.Duration `split_words:"true" group:"Storage" default:"200ms" desc:"How long a Redis node may take to reply before it counts as down, a duration from 10ms to 10s. The server then closes the connection, and requests do not wait for the node until it replies to a ping."`
	MaxWaiters         int           `split_words:"true" group:"Leases" range:"1 1000000" default:"10000" desc:"The maximum number of places in queues at this server, 1 to 1000000. A waiting request has one place, or one for each slot; over HTTP/1 it also needs a connection, which the limit of open files bounds."`
	MaxRecords         int64         `split_words:"true" group:"Guarded records" range:"1 1000000000" default:"100000" desc:"The maximum number of guarded records, including those with a deleted value, 1 to 1000000000. The server refuses new ones beyond that."`
	MaxRecordBytes     int64         `split_words:"true" group:"Guarded records" range:"1 1099511627776" default:"268435456" desc:"The maximum size of all guarded records together, in bytes, 1 to 1099511627776. The server refuses writes beyond that."`
	CounterTTL         time.Duration `split_words:"true" group:"Storage" default:"24h" desc:"How long a Redis node keeps a resource's counter after its last use, a duration of at least FENCELOCK_MAX_TTL."`
	AccessFile         string        `split_words:"true" group:"Access" desc:"The access file: callers with their bearer tokens (fencelock token new), certificates, rules and limits. Read again when it changes. Without it there is no access control."`
	TLSCertFile        string        `split_words:"true" group:"Listeners" desc:"The server's certificate and its intermediates, PEM; the API then uses TLS. Read again when it changes."`
	TLSKeyFile         string        `split_words:"true" group:"Listeners" desc:"The key of FENCELOCK_TLS_CERT_FILE, PEM."`
	TLSClientCAFile    string        `split_words:"true" group:"Listeners" desc:"The authorities of client certificates, PEM. A caller may present a certificate; its name (cert= in FENCELOCK_ACCESS_FILE) identifies the caller."`
	OIDCIssuer         string        `split_words:"true" group:"Access" desc:"An OpenID Connect issuer, an https:// URL. Its JWTs are accepted as bearer tokens, and a claim (jwt= in FENCELOCK_ACCESS_FILE) identifies the caller."`
	OIDCAudience       string        `split_words:"true" group:"Access" desc:"The audience that the aud of a JWT must contain."`
	OIDCClaim          string        `split_words:"true" group:"Access" default:"sub" desc:"The claim of a JWT that identifies the caller, a string."`
	Console            bool          `split_words:"true" group:"Listeners" default:"true" desc:"false switches off the console at /console. The API still returns the same data."`
	ProofKeyFile       string        `split_words:"true" group:"Access" desc:"A file with one key per line: its id, a space, 32 to 64 bytes in hexadecimal digits. Leases then carry a fencing_proof of their token, made with the first key; every key verifies. All servers need the same file. Read again when it changes."`
	LeaseKeyFile       string        `split_words:"true" group:"Access" desc:"A file of keys, in the format of FENCELOCK_PROOF_KEY_FILE. The first seals lease ids and list cursors; every key opens them. Without it servers use a secret that the nodes keep (fencelock secret rotate). All servers need the same file. Read again when it changes."`
	ProofRequired      bool          `split_words:"true" group:"Access" default:"false" desc:"true makes the guarded records refuse tokens without their fencing_proof (header Fencing-Proof)."`
	AllowedHosts       []string      `split_words:"true" group:"Listeners" desc:"Host names that clients may use for a server without access control, separated by commas, without ports. The server refuses others, so that web pages cannot reach it through a browser (DNS rebinding). Loopback and the listen address are always allowed; a server that listens on all addresses also accepts each IP address. * allows all."`
	Insecure           bool          `split_words:"true" group:"Access" default:"false" desc:"true allows addresses that are not loopback without access control, although any client that reaches them may lock, break and write. It does not switch FENCELOCK_ACCESS_FILE off."`
	MetricsPrefixes    []string      `split_words:"true" group:"Logs, metrics and traces" desc:"At most 20 prefixes of resources, separated by commas, as values of the label prefix of the lock metrics. By default that label is empty."`
	Tracing            string        `split_words:"true" group:"Logs, metrics and traces" oneof:"off otlp" default:"off" desc:"otlp sends OpenTelemetry traces over HTTP, as OTEL_EXPORTER_OTLP_ENDPOINT and the other OTEL_… variables say. off sends none."`
	LogFormat          string        `split_words:"true" group:"Logs, metrics and traces" oneof:"text json" desc:"text or json. By default text on a terminal, and json elsewhere."`
	LogLevel           slog.Level    `split_words:"true" group:"Logs, metrics and traces" default:"info" desc:"debug (logs every request), info, warn or error."`

	// RedisSets are the URLs in RedisAddrs, one slice for each set.
	RedisSets [][]string `ignored:"true"`
	// RedisNextSets are the URLs in RedisNextAddrs.
	RedisNextSets [][]string `ignored:"true"`
}

// OpenAdmin reports whether the admin listener serves every caller, because it is on loopback or may be
// insecure.
func (c Config) OpenAdmin() bool { return c.Insecure || OnLoopback(c.AdminListen) }

// Load reads the environment. An empty variable counts as not set. The error has one line for each
// invalid value.
func Load() (Config, error) {
	for _, v := range Variables() {
		if os.Getenv(v.Name) == "" {
			_ = os.Unsetenv(v.Name) // it can fail only for an invalid name
		}
	}
	var c Config
	p := problems{}
	if err := p.read(&c); err != nil {
		return Config{}, err
	}
	p.readFile("FENCELOCK_REDIS_ADDRS", c.RedisAddrsFile, &c.RedisAddrs)
	p.readFile("FENCELOCK_REDIS_NEXT_ADDRS", c.RedisNextAddrsFile, &c.RedisNextAddrs)
	p.readFile("FENCELOCK_STORE", c.StoreFile, &c.Store)
	p.readFile("FENCELOCK_DATABASE_URL", c.DatabaseURLFile, &c.DatabaseURL)
	p.check(&c)
	if c.Store != "" || len(c.RedisSets) > 0 && !given("FENCELOCK_DATA") {
		c.Data = ""
	}
	if c.DatabaseURL == "" && isPostgres(c.Store) {
		c.DatabaseURL = c.Store
	}
	return c, p.err()
}

// given reports whether a variable was set, so that its value is not the default.
func given(variable string) bool {
	_, ok := os.LookupEnv(variable)
	return ok
}

// problems collects error messages, one line for each variable.
type problems struct {
	lines   []error
	refused []string // the variables that have a line
}

// read fills c. envconfig stops at the first invalid value. So read hides that variable and runs
// envconfig again, until no value is invalid, and restores the variables at the end.
func (p *problems) read(c *Config) error {
	hidden := map[string]string{}
	defer func() {
		for name, value := range hidden {
			_ = os.Setenv(name, value) // cannot fail: it was set before
		}
	}()
	for {
		var parse *envconfig.ParseError
		err := envconfig.Process(prefix, c)
		if !errors.As(err, &parse) || !given(parse.KeyName) { // no error, or an invalid default
			return err
		}
		p.refuse(parse.KeyName, map[string]string{
			"bool":          "must be true or false",
			"int":           "must be a whole number",
			"time.Duration": "must be a duration such as 250ms or 30s",
			"slog.Level":    "must be debug, info, warn or error",
		}[parse.TypeName])
		hidden[parse.KeyName] = parse.Value
		_ = os.Unsetenv(parse.KeyName)
	}
}

// readFile reads a value from the file that its …_FILE variable names.
func (p *problems) readFile(name, file string, into *string) {
	if file == "" {
		return
	}
	if given(name) {
		p.refuse(name+"_FILE", "set either this or "+name+", not both")
		return
	}
	content, err := os.ReadFile(file)
	if err != nil {
		p.refuse(name+"_FILE", "must name a readable file: "+err.Error())
	}
	*into = strings.TrimSpace(string(content))
}

func (p *problems) err() error {
	if len(p.lines) == 0 {
		return nil
	}
	return fmt.Errorf("the configuration is not valid:\n%w", errors.Join(p.lines...))
}

// refuse records a problem of a variable. It shows the value unless that may contain a password. Only a
// variable's first problem is recorded.
func (p *problems) refuse(name, problem string) {
	if given(name + "_FILE") {
		name, problem = name+"_FILE", "in the file: "+problem
	}
	if slices.Contains(p.refused, name) {
		return
	}
	p.refused = append(p.refused, name)
	shown := fmt.Sprintf("=%q", os.Getenv(name))
	if slices.ContainsFunc(Variables(), func(v Variable) bool { return v.Name == name && v.Secret }) {
		shown = " (value not shown)"
	}
	p.lines = append(p.lines, fmt.Errorf("  %s%s: %s", name, shown, problem))
}
