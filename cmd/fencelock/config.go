package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
)

const envPrefix = "FENCELOCK"

// environment is the configuration variable by variable; desc says the
// meaning, the unit and what is allowed, for --help. The names come from the fields
// (split_words), not from tags: a tag would make envconfig look for the name
// without its prefix, too, and DATABASE_URL is often somebody else's.
//
// An empty variable counts as one that is not set.
type environment struct {
	Listen          address       `split_words:"true" default:"127.0.0.1:8080" desc:"Address of the HTTP API, host:port. Port 0 picks a free one, which the first line of the log names. An address that is not loopback needs FENCELOCK_ACCESS_FILE, or FENCELOCK_INSECURE=true."`
	AdminListen     address       `split_words:"true" default:"127.0.0.1:8081" desc:"Address of /metrics and /debug/pprof, host:port. On an address that is not loopback, FENCELOCK_ACCESS_FILE (read=* for metrics, admin=* for profiles) and the TLS files apply here too, unless FENCELOCK_INSECURE=true."`
	Data            string        `split_words:"true" default:"fencelock.db" desc:"The embedded file. It is the lock node if FENCELOCK_REDIS_ADDRS is not set, and holds the guarded records if FENCELOCK_DATABASE_URL is not set. With FENCELOCK_REDIS_ADDRS it is used only when it is set."`
	RedisAddrs      redisSets     `split_words:"true" desc:"The Redis nodes: 1, 3, 5 or 7, each host:port or a redis:// or rediss:// URL with user, password and database, separated by commas. Semicolons separate independent node sets, over which the resources are spread. Secret."`
	RedisAddrsFile  string        `split_words:"true" desc:"A file with the value of FENCELOCK_REDIS_ADDRS."`
	DatabaseURL     postgresURL   `split_words:"true" desc:"Postgres for the guarded records, a postgres:// URL. Secret."`
	DatabaseURLFile string        `split_words:"true" desc:"A file with the value of FENCELOCK_DATABASE_URL."`
	Bootstrap       bootstrapMode `split_words:"true" desc:"new: the cluster is new, so the first start does not wait for old leases to expire. It acts only while every node is reachable and empty. Unset it after the first start if the nodes have no persistence: a power cut that empties all of them would skip the wait."`
	Recovery        recovery      `split_words:"true" default:"auto" desc:"What happens after a majority of the nodes lost its data. auto bootstraps the cluster again once the longest TTL has passed; manual leaves it to fencelock bootstrap."`
	MaxTTL          time.Duration `split_words:"true" default:"60s" desc:"The longest TTL that a request may ask for, a duration from 100ms to 24h. It is also how long a restarted node is quarantined. All servers need the same."`
	DefaultTTL      time.Duration `split_words:"true" default:"30s" desc:"The TTL of a request without ttl_ms, a duration from 100ms to FENCELOCK_MAX_TTL."`
	MaxHold         time.Duration `split_words:"true" default:"1h" desc:"How long extensions may keep one lease, a duration of at least FENCELOCK_MAX_TTL, which raises the default; 0 for no limit."`
	NodeTimeout     time.Duration `split_words:"true" desc:"How long a request waits for a node, a duration from 1ms to a tenth of FENCELOCK_MAX_TTL (and never more than a tenth of the request's TTL). By default 50ms, or 2s with the embedded file, which has no other node to decide without it."`
	MaxWaiters      int           `split_words:"true" default:"10000" desc:"How many requests may wait in queues at this server, 1 to 1000000."`
	CounterTTL      time.Duration `split_words:"true" default:"24h" desc:"How long a Redis node keeps a resource's counter after its last use, a duration of at least FENCELOCK_MAX_TTL."`
	AccessFile      string        `split_words:"true" desc:"The access file: names with their bearer tokens (fencelock token new), certificates, rules and limits. Read again when it changes. Without it no caller is authenticated."`
	TLSCertFile     string        `split_words:"true" desc:"The server's certificate and its intermediates, PEM: the API is served over TLS. Read again when it changes."`
	TLSKeyFile      string        `split_words:"true" desc:"The key of FENCELOCK_TLS_CERT_FILE, PEM."`
	TLSClientCAFile string        `split_words:"true" desc:"The authorities of client certificates, PEM. A caller may present a certificate; its name (cert= in FENCELOCK_ACCESS_FILE) identifies the caller."`
	OIDCIssuer      string        `split_words:"true" desc:"An OpenID Connect issuer, an https:// URL. Its JWTs are accepted as bearer tokens, and a claim (jwt= in FENCELOCK_ACCESS_FILE) identifies the caller."`
	OIDCAudience    string        `split_words:"true" desc:"What the aud of a JWT must contain."`
	OIDCClaim       string        `split_words:"true" default:"sub" desc:"The claim of a JWT that identifies the caller, a string."`
	Console         bool          `split_words:"true" default:"true" desc:"false serves no console at /console. The API still returns what it shows."`
	ProofKeyFile    string        `split_words:"true" desc:"A file of keys, one a line: its id, a space, 32 to 64 bytes in hexadecimal digits. Leases then carry a fence_proof of their token, made with the first key; every key verifies. All servers need the same. Read again when it changes."`
	LeaseKeyFile    string        `split_words:"true" desc:"A file of keys, in the format of FENCELOCK_PROOF_KEY_FILE. The first seals lease ids and list cursors; every key opens them. Without it servers use a secret that the nodes keep (fencelock secret rotate). All servers need the same. Read again when it changes."`
	ProofRequired   bool          `split_words:"true" default:"false" desc:"true makes the guarded records refuse tokens without their fence_proof (header Fencing-Proof)."`
	AllowedHosts    hosts         `split_words:"true" desc:"Host names that requests to a server without access control may use, separated by commas, without ports. They keep web pages of other names from reaching it through a browser (DNS rebinding). Loopback and the listen address are always allowed; a server that listens on all addresses also answers to each IP address. * allows all."`
	Insecure        bool          `split_words:"true" default:"false" desc:"true allows addresses that are not loopback without access control, although any client that reaches them may lock, break and write. It does not switch FENCELOCK_ACCESS_FILE off."`
	MetricsPrefixes prefixes      `split_words:"true" desc:"At most 20 prefixes of resources, separated by commas, which become values of a label of the lock metrics. Without it there is no such label."`
	Tracing         tracingMode   `split_words:"true" default:"off" desc:"otlp sends OpenTelemetry traces over HTTP, to where OTEL_EXPORTER_OTLP_ENDPOINT and the other OTEL_… variables say. off sends none."`
	LogFormat       logFormat     `split_words:"true" desc:"text or json. By default text on a terminal, else json."`
	LogLevel        slog.Level    `split_words:"true" default:"info" desc:"debug (logs every request), info, warn or error."`
}

// config is the configuration, checked.
type config struct {
	listen          string // host:port
	adminListen     string
	data            string     // path of the embedded file; "" if none is used
	redisSets       [][]string // URLs, set by set
	databaseURL     string     // "" for none
	bootstrap       bool       // the cluster is new
	recovery        membership.Recovery
	maxTTL          time.Duration
	defaultTTL      time.Duration
	maxHold         time.Duration // negative for unbounded
	nodeTimeout     time.Duration
	maxWaiters      int
	console         bool
	allowedHosts    []string // besides loopback and the listen address
	counterTTL      time.Duration
	access          accessFiles
	tls             tlsFiles
	proofKeys       string // path of the file, "" for no proofs
	leaseKeys       string // path of the file, "" for the cluster's own secret
	proofRequired   bool
	openAdmin       bool     // the admin listener asks nobody, since it is on loopback or may be insecure
	metricsPrefixes []string // of resources
	tracing         bool
	logFormat       string // text, json, or "" for what fits
	logLevel        slog.Level
}

// accessFiles say who may do what; file is "" if nobody is asked.
type accessFiles struct {
	file string
	oidc access.OIDC // without an issuer, JWTs are not known
}

// tlsFiles are the server's certificate, "" for none, and who signs its clients'.
type tlsFiles struct{ cert, key, clientCA string }

// loadConfig reads the environment. The error names every bad value at once.
func loadConfig() (config, error) {
	unsetEmpty()
	var env environment
	c := checker{}
	if err := c.read(&env); err != nil {
		return config{}, err
	}
	c.readFile("FENCELOCK_REDIS_ADDRS", env.RedisAddrsFile, &env.RedisAddrs)
	c.readFile("FENCELOCK_DATABASE_URL", env.DatabaseURLFile, &env.DatabaseURL)
	cfg := c.check(env)
	if len(cfg.redisSets) > 0 && !given("FENCELOCK_DATA") {
		cfg.data = ""
	}
	return cfg, c.err()
}

// unsetEmpty makes an empty variable one that is not set.
func unsetEmpty() {
	for _, v := range variables() {
		if os.Getenv(v.name) == "" {
			_ = os.Unsetenv(v.name) // fails only where the name is not valid
		}
	}
}

// given tells a value that somebody set from the default, were they the same.
func given(variable string) bool {
	_, ok := os.LookupEnv(variable)
	return ok
}

// checker collects what is wrong, a line for each variable.
type checker struct {
	bad     []error
	refused []string // the variables
}

// read fills env from the environment. envconfig stops at the first value that
// is bad, so it is run again without that one until there is none: until read
// returns, a bad variable is not set.
func (c *checker) read(env *environment) error {
	hidden := map[string]string{}
	defer func() {
		for name, value := range hidden {
			_ = os.Setenv(name, value) // it could be set before
		}
	}()
	for {
		var parse *envconfig.ParseError
		err := envconfig.Process(envPrefix, env)
		if !errors.As(err, &parse) || !given(parse.KeyName) { // none, or a default is bad
			return err
		}
		c.refuse(parse.KeyName, reason(parse))
		hidden[parse.KeyName] = parse.Value
		_ = os.Unsetenv(parse.KeyName)
	}
}

// reason says what a value must be: in the words of its type, if that is ours.
func reason(err *envconfig.ParseError) string {
	switch err.TypeName {
	case "bool":
		return "must be true or false"
	case "int":
		return "must be a whole number"
	case "time.Duration":
		return "must be a duration such as 250ms or 30s"
	case "slog.Level":
		return "must be debug, info, warn or error"
	default:
		return err.Err.Error()
	}
}

// readFile takes a value from the file of its …_FILE variable.
func (c *checker) readFile(name, file string, into envconfig.Decoder) {
	if file == "" {
		return
	}
	if given(name) {
		c.refuse(name+"_FILE", "set either this or "+name+", not both")
		return
	}
	content, err := os.ReadFile(file)
	if err != nil {
		c.refuse(name+"_FILE", "must name a file that can be read: "+err.Error())
		return
	}
	if err := into.Decode(strings.TrimSpace(string(content))); err != nil {
		c.refuse(name+"_FILE", "what the file holds, "+err.Error())
	}
}

func (c *checker) err() error {
	if len(c.bad) == 0 {
		return nil
	}
	return fmt.Errorf("the configuration is not valid:\n%w", errors.Join(c.bad...))
}

// refuse says what is wrong with a variable, and shows its value unless that
// may hold a password.
func (c *checker) refuse(name, problem string) {
	if slices.Contains(c.refused, name) {
		return
	}
	c.refused = append(c.refused, name)
	switch name {
	case "FENCELOCK_REDIS_ADDRS", "FENCELOCK_DATABASE_URL":
		c.bad = append(c.bad, fmt.Errorf("  %s (value not shown): %s", name, problem))
	default:
		c.bad = append(c.bad, fmt.Errorf("  %s=%q: %s", name, os.Getenv(name), problem))
	}
}

// check holds the variables against each other.
func (c *checker) check(env environment) config {
	cfg := config{
		listen:          string(env.Listen),
		adminListen:     string(env.AdminListen),
		openAdmin:       env.Insecure || onLoopback(string(env.AdminListen)),
		access:          c.access(env),
		tls:             c.tls(env),
		proofKeys:       env.ProofKeyFile,
		leaseKeys:       env.LeaseKeyFile,
		proofRequired:   env.ProofRequired,
		data:            env.Data,
		redisSets:       env.RedisAddrs,
		databaseURL:     string(env.DatabaseURL),
		bootstrap:       env.Bootstrap == "new",
		recovery:        membership.Recovery(env.Recovery),
		maxWaiters:      env.MaxWaiters,
		allowedHosts:    env.AllowedHosts,
		metricsPrefixes: env.MetricsPrefixes,
		tracing:         env.Tracing == "otlp",
		console:         env.Console,
		logFormat:       string(env.LogFormat),
		logLevel:        env.LogLevel,
	}
	if !env.Insecure && env.AccessFile == "" {
		c.onlyLoopback("FENCELOCK_LISTEN", env.Listen)
		c.onlyLoopback("FENCELOCK_ADMIN_LISTEN", env.AdminListen)
	}
	if env.MaxWaiters < 1 || env.MaxWaiters > mostWaiters {
		c.refuse("FENCELOCK_MAX_WAITERS", fmt.Sprintf("must be a whole number from 1 to %d", mostWaiters))
	}
	if env.ProofRequired && env.ProofKeyFile == "" {
		c.refuse("FENCELOCK_PROOF_REQUIRED", "needs FENCELOCK_PROOF_KEY_FILE, with the keys that proofs are verified with")
	}
	c.durations(env, &cfg)
	return cfg
}

const mostWaiters = 1_000_000

func (c *checker) onlyLoopback(name string, a address) {
	if !onLoopback(string(a)) {
		c.refuse(name, "is not a loopback address, and there is no access control: anybody who reaches it may take, break and write everything. "+
			"Name who may in FENCELOCK_ACCESS_FILE (make a line with: fencelock token new), or set FENCELOCK_INSECURE=true if something else controls access")
	}
}

func (c *checker) durations(env environment, cfg *config) {
	const long = 365 * 24 * time.Hour
	cfg.maxTTL = env.MaxTTL
	if !c.between("FENCELOCK_MAX_TTL", env.MaxTTL, lockcore.MinTTL, 24*time.Hour) {
		cfg.maxTTL = 24 * time.Hour // so that one mistake is not told four times
	}
	cfg.defaultTTL = env.DefaultTTL
	if !given("FENCELOCK_DEFAULT_TTL") { // a maximum below the default of the default lowers that, too
		cfg.defaultTTL = min(cfg.defaultTTL, cfg.maxTTL)
	}
	c.between("FENCELOCK_DEFAULT_TTL", cfg.defaultTTL, lockcore.MinTTL, cfg.maxTTL)
	cfg.nodeTimeout = env.NodeTimeout
	if !given("FENCELOCK_NODE_TIMEOUT") {
		cfg.nodeTimeout = defaultNodeTimeout(*cfg)
	}
	c.between("FENCELOCK_NODE_TIMEOUT", cfg.nodeTimeout, time.Millisecond, cfg.maxTTL/10)
	cfg.counterTTL = env.CounterTTL
	c.between("FENCELOCK_COUNTER_TTL", cfg.counterTTL, cfg.maxTTL, long)
	cfg.maxHold = env.MaxHold
	if !given("FENCELOCK_MAX_HOLD") { // a maximum above the default of the longest hold raises that
		cfg.maxHold = max(cfg.maxHold, cfg.maxTTL)
	}
	if cfg.maxHold == 0 {
		cfg.maxHold = -1
		return
	}
	c.between("FENCELOCK_MAX_HOLD", cfg.maxHold, cfg.maxTTL, long)
}

// between refuses a duration that is out of bounds, or finer than milliseconds.
func (c *checker) between(name string, d, least, most time.Duration) bool {
	if d < least || d > most || d%time.Millisecond != 0 {
		c.refuse(name, fmt.Sprintf("must be a duration such as 250ms or 30s, in whole milliseconds, from %s to %s", least, most))
	}
	return !slices.Contains(c.refused, name)
}

// defaultNodeTimeout is short for Redis, where the other nodes decide without
// the one that is late, and long for the embedded file, which has no others.
func defaultNodeTimeout(cfg config) time.Duration {
	if len(cfg.redisSets) > 0 {
		return min(50*time.Millisecond, cfg.maxTTL/10)
	}
	return min(2*time.Second, cfg.maxTTL/10)
}

// access checks what is said of JWTs; the file is read when the service starts.
func (c *checker) access(env environment) accessFiles {
	a := accessFiles{file: env.AccessFile}
	if env.OIDCIssuer == "" {
		if env.OIDCAudience != "" {
			c.refuse("FENCELOCK_OIDC_AUDIENCE", "is of use only with FENCELOCK_OIDC_ISSUER: set that, too, or take this away")
		}
		return a
	}
	if u, err := url.Parse(env.OIDCIssuer); err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		c.refuse("FENCELOCK_OIDC_ISSUER", "must be a URL such as https://issuer.example.com, just as it is in the tokens")
	}
	if env.OIDCAudience == "" {
		c.refuse("FENCELOCK_OIDC_AUDIENCE", "must be set with FENCELOCK_OIDC_ISSUER: without it, tokens that were issued for other services would be taken")
	}
	if a.file == "" {
		c.refuse("FENCELOCK_OIDC_ISSUER", "needs FENCELOCK_ACCESS_FILE, which says what each identity may do")
	}
	a.oidc = access.OIDC{Issuer: env.OIDCIssuer, Audience: env.OIDCAudience, Claim: env.OIDCClaim}
	return a
}

func (c *checker) tls(env environment) tlsFiles {
	if (env.TLSCertFile == "") != (env.TLSKeyFile == "") {
		c.refuse("FENCELOCK_TLS_CERT_FILE", "and FENCELOCK_TLS_KEY_FILE go together: set both, or neither")
	}
	if env.TLSClientCAFile != "" && env.TLSCertFile == "" {
		c.refuse("FENCELOCK_TLS_CLIENT_CA_FILE", "needs FENCELOCK_TLS_CERT_FILE and FENCELOCK_TLS_KEY_FILE: certificates are shown over TLS only")
	}
	if env.TLSClientCAFile != "" && env.AccessFile == "" {
		c.refuse("FENCELOCK_TLS_CLIENT_CA_FILE", "needs FENCELOCK_ACCESS_FILE, which says what each certificate's name may do")
	}
	return tlsFiles{cert: env.TLSCertFile, key: env.TLSKeyFile, clientCA: env.TLSClientCAFile}
}
