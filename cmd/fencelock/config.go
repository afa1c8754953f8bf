package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/lockcore"
)

const envPrefix = "FENCELOCK"

// environment is the configuration as it is written in variables; desc says
// the meaning, the unit and what is allowed. The names come from the fields
// (split_words), not from tags: a tag would make envconfig look for the name
// without its prefix, too, and DATABASE_URL is often somebody else's.
//
// An empty variable counts as one that is not set.
type environment struct {
	Listen          string `split_words:"true" default:"127.0.0.1:8080" desc:"Address of the HTTP API, host:port; port 0 picks a free one, which the first line of the log names. An address that is not loopback needs FENCELOCK_ACCESS_FILE, or FENCELOCK_INSECURE=true."`
	AdminListen     string `split_words:"true" default:"127.0.0.1:8081" desc:"Address of /metrics and /debug/pprof, as above. Where it is not loopback, FENCELOCK_ACCESS_FILE (read=* for the metrics, admin=* for profiles) and the TLS files are in force here, too, unless FENCELOCK_INSECURE=true."`
	Data            string `split_words:"true" default:"fencelock.db" desc:"The embedded file: the lock node if there is no FENCELOCK_REDIS_ADDRS, and the guarded records if there is no FENCELOCK_DATABASE_URL. Together with FENCELOCK_REDIS_ADDRS it is used only when it is set."`
	RedisAddrs      string `split_words:"true" desc:"The Redis nodes: 1, 3, 5 or 7 of host:port, redis:// or rediss:// URLs, separated by commas; several independent sets of them, over which the resources are spread, are separated by semicolons. Secret (URLs hold passwords)."`
	RedisAddrsFile  string `split_words:"true" desc:"A file that holds the value of FENCELOCK_REDIS_ADDRS."`
	DatabaseURL     string `split_words:"true" desc:"Postgres for the guarded records, a postgres:// URL. Secret."`
	DatabaseURLFile string `split_words:"true" desc:"A file that holds the value of FENCELOCK_DATABASE_URL."`
	Bootstrap       string `split_words:"true" desc:"new: the cluster is new, so the first start need not wait for old leases to end. Acts only while every node is reachable and empty."`
	Recovery        string `split_words:"true" default:"auto" desc:"After the loss of a majority: auto founds the cluster anew by itself after the wait, manual leaves it to the operator."`
	MaxTTL          string `split_words:"true" default:"60s" desc:"The longest lease that may be asked for, a duration from 100ms to 24h."`
	DefaultTTL      string `split_words:"true" default:"30s" desc:"The lease of a request that names none, a duration from 100ms to FENCELOCK_MAX_TTL."`
	MaxHold         string `split_words:"true" default:"1h" desc:"How long extensions may keep one lease, a duration from FENCELOCK_MAX_TTL on, which the default follows; 0 for ever."`
	NodeTimeout     string `split_words:"true" desc:"How long a request waits for a node, a duration from 1ms to a tenth of FENCELOCK_MAX_TTL (and never more than a tenth of the request's TTL). By default 50ms; 2s with the embedded file, since a slow disk is no reason to give up the only node."`
	MaxWaiters      string `split_words:"true" default:"10000" desc:"How many requests may wait in line at this server, 1 to 1000000."`
	CounterTTL      string `split_words:"true" default:"24h" desc:"How long a Redis node keeps a resource's counter after its last use, a duration from FENCELOCK_MAX_TTL on."`
	AccessFile      string `split_words:"true" desc:"A file that says who may do what: names with their bearer tokens (fencelock token new), certificates, rules and limits. Read again when it changes. Without it nobody is asked."`
	TLSCertFile     string `split_words:"true" desc:"The server's certificate and its intermediates, PEM: the API is served over TLS. Read again when it changes."`
	TLSKeyFile      string `split_words:"true" desc:"The key of FENCELOCK_TLS_CERT_FILE, PEM."`
	TLSClientCAFile string `split_words:"true" desc:"The authorities of client certificates, PEM: callers may show one, and its name (cert= in FENCELOCK_ACCESS_FILE) is who they are."`
	OIDCIssuer      string `split_words:"true" desc:"An OpenID Connect issuer, an https:// URL: its JWTs are taken for bearer tokens, and a claim (jwt= in FENCELOCK_ACCESS_FILE) is who sends them."`
	OIDCAudience    string `split_words:"true" desc:"What the aud of a JWT must contain."`
	OIDCClaim       string `split_words:"true" default:"sub" desc:"The claim of a JWT that is the identity, a text."`
	Console         string `split_words:"true" default:"true" desc:"false serves no console at /console. What it shows stays reachable by the API."`
	ProofKeyFile    string `split_words:"true" desc:"A file of keys, a line for each: its id, a space, 32 to 64 bytes in hexadecimal digits. Leases then carry a fence_proof of their token, made with the first key; all verify. Every server needs the same. Read again when it changes."`
	LeaseKeyFile    string `split_words:"true" desc:"A file of keys, of the form of FENCELOCK_PROOF_KEY_FILE: lease ids and list cursors are sealed with the first, all open them. Without it servers use a secret that the nodes keep (fencelock secret rotate). Every server needs the same. Read again when it changes."`
	ProofRequired   string `split_words:"true" default:"false" desc:"true makes the guarded records refuse tokens without their fence_proof (header Fencing-Proof)."`
	AllowedHosts    string `split_words:"true" desc:"Names by which the service may be asked (the Host of a request) where there is no access control, separated by commas, without ports: web pages of other names must not reach it through a browser (DNS rebinding). Loopback and the address that it listens on always may; a server that listens on all addresses also answers to each IP address. * allows all."`
	Insecure        string `split_words:"true" default:"false" desc:"true allows addresses that are not loopback without access control, although anybody who reaches them may lock, break and write. It does not switch FENCELOCK_ACCESS_FILE off."`
	MetricsPrefixes string `split_words:"true" desc:"Prefixes of resources, separated by commas, at most 20 of them: the metrics of locks then tell the resources under each apart. By default they tell none."`
	Tracing         string `split_words:"true" default:"off" desc:"otlp sends OpenTelemetry traces over HTTP; where to is said by OTEL_EXPORTER_OTLP_ENDPOINT and the other OTEL_… variables. off sends none."`
	LogFormat       string `split_words:"true" desc:"text or json. By default text on a terminal, else json."`
	LogLevel        string `split_words:"true" default:"info" desc:"debug (every request is logged), info, warn or error."`
}

// config is the configuration, checked.
type config struct {
	listen          string // host:port
	adminListen     string
	data            string     // path of the embedded file; "" if none is used
	redisSets       [][]string // URLs, set by set
	databaseURL     string     // "" for none
	bootstrap       bool       // the cluster is new
	recovery        lockcore.Recovery
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
	var env environment
	if err := envconfig.Process(envPrefix, &env); err != nil {
		return config{}, err
	}
	c := checker{}
	env.RedisAddrs = c.secret("FENCELOCK_REDIS_ADDRS", env.RedisAddrs, env.RedisAddrsFile)
	env.DatabaseURL = c.secret("FENCELOCK_DATABASE_URL", env.DatabaseURL, env.DatabaseURLFile)
	dataGiven := os.Getenv("FENCELOCK_DATA") != ""
	fillDefaults(&env)
	cfg := c.check(env)
	if len(cfg.redisSets) > 0 && !dataGiven {
		cfg.data = ""
	}
	return cfg, c.err()
}

// fillDefaults gives variables that are set but empty their defaults, too.
func fillDefaults(env *environment) {
	fields := reflect.ValueOf(env).Elem()
	for i := range fields.NumField() {
		if fields.Field(i).String() == "" {
			fields.Field(i).SetString(fields.Type().Field(i).Tag.Get("default"))
		}
	}
}

func (c *checker) check(env environment) config {
	insecure := c.oneOf("FENCELOCK_INSECURE", env.Insecure, "true", "false") == "true"
	exposed := insecure || env.AccessFile != ""
	cfg := config{
		listen:          c.address("FENCELOCK_LISTEN", env.Listen, exposed),
		adminListen:     c.address("FENCELOCK_ADMIN_LISTEN", env.AdminListen, exposed),
		openAdmin:       insecure || onLoopback(env.AdminListen),
		access:          c.access(env),
		tls:             c.tls(env),
		data:            env.Data,
		redisSets:       c.redisSets("FENCELOCK_REDIS_ADDRS", env.RedisAddrs),
		databaseURL:     c.postgresURL("FENCELOCK_DATABASE_URL", env.DatabaseURL),
		bootstrap:       c.oneOf("FENCELOCK_BOOTSTRAP", env.Bootstrap, "new", "") == "new",
		recovery:        lockcore.Recovery(c.oneOf("FENCELOCK_RECOVERY", env.Recovery, string(lockcore.RecoveryAuto), string(lockcore.RecoveryManual))),
		maxWaiters:      c.number("FENCELOCK_MAX_WAITERS", env.MaxWaiters, 1, 1_000_000),
		metricsPrefixes: c.prefixes("FENCELOCK_METRICS_PREFIXES", env.MetricsPrefixes),
		tracing:         c.oneOf("FENCELOCK_TRACING", env.Tracing, "off", "otlp") == "otlp",
		console:         c.oneOf("FENCELOCK_CONSOLE", env.Console, "true", "false") == "true",
		logFormat:       c.oneOf("FENCELOCK_LOG_FORMAT", env.LogFormat, "text", "json", ""),
		logLevel:        c.level("FENCELOCK_LOG_LEVEL", env.LogLevel),
	}
	cfg.allowedHosts = c.hosts("FENCELOCK_ALLOWED_HOSTS", env.AllowedHosts)
	cfg.proofKeys, cfg.leaseKeys = env.ProofKeyFile, env.LeaseKeyFile
	cfg.proofRequired = c.oneOf("FENCELOCK_PROOF_REQUIRED", env.ProofRequired, "true", "false") == "true"
	if cfg.proofRequired && cfg.proofKeys == "" {
		c.refuse("FENCELOCK_PROOF_REQUIRED", env.ProofRequired, "needs FENCELOCK_PROOF_KEY_FILE, with the keys that proofs are verified with")
	}
	c.durations(env, &cfg)
	return cfg
}

func (c *checker) durations(env environment, cfg *config) {
	const long = 365 * 24 * time.Hour
	cfg.maxTTL = c.duration("FENCELOCK_MAX_TTL", env.MaxTTL, lockcore.MinTTL, 24*time.Hour)
	if cfg.maxTTL == 0 {
		cfg.maxTTL = 24 * time.Hour // so that one mistake is not told four times
	}
	// A maximum below the default of the default lowers that, too.
	if !given("FENCELOCK_DEFAULT_TTL") && cfg.maxTTL < 30*time.Second {
		env.DefaultTTL = cfg.maxTTL.String()
	}
	cfg.defaultTTL = c.duration("FENCELOCK_DEFAULT_TTL", env.DefaultTTL, lockcore.MinTTL, cfg.maxTTL)
	if env.NodeTimeout == "" {
		env.NodeTimeout = defaultNodeTimeout(*cfg).String()
	}
	cfg.nodeTimeout = c.duration("FENCELOCK_NODE_TIMEOUT", env.NodeTimeout, time.Millisecond, cfg.maxTTL/10)
	cfg.counterTTL = c.duration("FENCELOCK_COUNTER_TTL", env.CounterTTL, cfg.maxTTL, long)
	// A maximum above the default of the longest hold raises that.
	if !given("FENCELOCK_MAX_HOLD") && cfg.maxTTL > time.Hour {
		env.MaxHold = cfg.maxTTL.String()
	}
	if env.MaxHold == "0" || env.MaxHold == "0s" {
		cfg.maxHold = -1
		return
	}
	cfg.maxHold = c.duration("FENCELOCK_MAX_HOLD", env.MaxHold, cfg.maxTTL, long)
}

// defaultNodeTimeout is short for Redis, where the other nodes decide without
// the one that is late, and long for the embedded file, which has no others.
func defaultNodeTimeout(cfg config) time.Duration {
	if len(cfg.redisSets) > 0 {
		return min(50*time.Millisecond, cfg.maxTTL/10)
	}
	return min(2*time.Second, cfg.maxTTL/10)
}

// given tells a value that somebody set from the default, were they the same.
func given(variable string) bool {
	_, ok := os.LookupEnv(variable)
	return ok
}

func defaultOf(field string) string {
	f, ok := reflect.TypeFor[environment]().FieldByName(field)
	if !ok {
		panic("no such variable: " + field)
	}
	return f.Tag.Get("default")
}

// checker collects what is wrong.
type checker struct{ bad []error }

func (c *checker) err() error {
	if len(c.bad) == 0 {
		return nil
	}
	return fmt.Errorf("the configuration is not valid:\n%w", errors.Join(c.bad...))
}

func (c *checker) refuse(name, value, allowed string) {
	c.bad = append(c.bad, fmt.Errorf("  %s=%q: %s", name, value, allowed))
}

// refuseSecret says what is wrong without the value.
func (c *checker) refuseSecret(name, problem string) {
	c.bad = append(c.bad, fmt.Errorf("  %s (value not shown): %s", name, problem))
}

// secret is a value, or what the file of its …_FILE variable holds.
func (c *checker) secret(name, value, file string) string {
	if file == "" {
		return value
	}
	if value != "" {
		c.refuse(name+"_FILE", file, "set either this or "+name+", not both")
		return ""
	}
	content, err := os.ReadFile(file)
	if err != nil {
		c.refuse(name+"_FILE", file, "must name a file that can be read: "+err.Error())
		return ""
	}
	return strings.TrimSpace(string(content))
}

func (c *checker) oneOf(name, value string, allowed ...string) string {
	if slices.Contains(allowed, value) {
		return value
	}
	c.refuse(name, value, "must be "+strings.Join(nonEmpty(allowed), " or "))
	return value
}

func nonEmpty(texts []string) (kept []string) {
	for _, t := range texts {
		if t != "" {
			kept = append(kept, t)
		}
	}
	return kept
}

// mostPrefixes bounds the series that the prefixes make.
const mostPrefixes = 20

func (c *checker) prefixes(name, value string) []string {
	if value == "" {
		return nil
	}
	prefixes := strings.Split(value, ",")
	bad := len(prefixes) > mostPrefixes
	for i, p := range prefixes {
		bad = bad || lockcore.ValidateResource(p) != nil || slices.Contains(prefixes[:i], p)
	}
	if bad {
		c.refuse(name, value, fmt.Sprintf("must be at most %d different prefixes such as orders/,invoices/, none of them empty", mostPrefixes))
	}
	return prefixes
}

func (c *checker) hosts(name, value string) []string {
	if value == "" {
		return nil
	}
	hosts := strings.Split(value, ",")
	for i, h := range hosts {
		hosts[i] = strings.TrimSpace(h)
		if hosts[i] == "" || hosts[i] != api.AnyHost && strings.ContainsAny(hosts[i], "*/:@ ") && net.ParseIP(hosts[i]) == nil {
			c.refuse(name, value, "must be names such as locks.example.com, without scheme and port, separated by commas, or *")
			return nil
		}
	}
	return hosts
}

func (c *checker) level(name, value string) slog.Level {
	var level slog.Level
	switch value = strings.ToLower(value); value {
	case "debug", "info", "warn", "error":
		if err := level.UnmarshalText([]byte(value)); err == nil {
			return level
		}
	}
	c.refuse(name, value, "must be debug, info, warn or error")
	return level
}

func (c *checker) number(name, value string, least, most int) int {
	n, err := strconv.Atoi(value)
	if err != nil || n < least || n > most {
		c.refuse(name, value, fmt.Sprintf("must be a whole number from %d to %d", least, most))
	}
	return n
}

// duration is 0 if it is out of bounds.
func (c *checker) duration(name, value string, least, most time.Duration) time.Duration {
	d, err := time.ParseDuration(value)
	if err != nil || d < least || d > most || d%time.Millisecond != 0 {
		c.refuse(name, value, fmt.Sprintf("must be a duration such as 250ms or 30s, in whole milliseconds, from %s to %s", least, most))
		return 0
	}
	return d
}

// access checks what is said of JWTs; the file is read when the service starts.
func (c *checker) access(env environment) accessFiles {
	a := accessFiles{file: env.AccessFile}
	if env.OIDCIssuer == "" {
		if env.OIDCAudience != "" {
			c.refuse("FENCELOCK_OIDC_AUDIENCE", env.OIDCAudience, "is of use only with FENCELOCK_OIDC_ISSUER: set that, too, or take this away")
		}
		return a
	}
	if u, err := url.Parse(env.OIDCIssuer); err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		c.refuse("FENCELOCK_OIDC_ISSUER", env.OIDCIssuer, "must be a URL such as https://issuer.example.com, just as it is in the tokens")
	}
	if env.OIDCAudience == "" {
		c.refuse("FENCELOCK_OIDC_AUDIENCE", "", "must be set with FENCELOCK_OIDC_ISSUER: without it, tokens that were issued for other services would be taken")
	}
	if a.file == "" {
		c.refuse("FENCELOCK_OIDC_ISSUER", env.OIDCIssuer, "needs FENCELOCK_ACCESS_FILE, which says what each identity may do")
	}
	a.oidc = access.OIDC{Issuer: env.OIDCIssuer, Audience: env.OIDCAudience, Claim: env.OIDCClaim}
	return a
}

func (c *checker) tls(env environment) tlsFiles {
	if (env.TLSCertFile == "") != (env.TLSKeyFile == "") {
		c.refuse("FENCELOCK_TLS_CERT_FILE", env.TLSCertFile, "and FENCELOCK_TLS_KEY_FILE go together: set both, or neither")
	}
	if env.TLSClientCAFile != "" && env.TLSCertFile == "" {
		c.refuse("FENCELOCK_TLS_CLIENT_CA_FILE", env.TLSClientCAFile, "needs FENCELOCK_TLS_CERT_FILE and FENCELOCK_TLS_KEY_FILE: certificates are shown over TLS only")
	}
	if env.TLSClientCAFile != "" && env.AccessFile == "" {
		c.refuse("FENCELOCK_TLS_CLIENT_CA_FILE", env.TLSClientCAFile, "needs FENCELOCK_ACCESS_FILE, which says what each certificate's name may do")
	}
	return tlsFiles{cert: env.TLSCertFile, key: env.TLSKeyFile, clientCA: env.TLSClientCAFile}
}

func (c *checker) address(name, value string, exposed bool) string {
	host, port, err := net.SplitHostPort(value)
	if n, errPort := strconv.ParseUint(port, 10, 16); err != nil || errPort != nil || strconv.FormatUint(n, 10) != port {
		c.refuse(name, value, "must be host:port with a port from 0 to 65535, such as 127.0.0.1:8080")
		return value
	}
	if !exposed && !loopback(host) {
		c.refuse(name, value, "is not a loopback address, and there is no access control: anybody who reaches it may take, break and write everything. "+
			"Name who may in FENCELOCK_ACCESS_FILE (make a line with: fencelock token new), or set FENCELOCK_INSECURE=true if something else controls access")
	}
	return value
}

func onLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && loopback(host)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (c *checker) postgresURL(name, value string) string {
	if value == "" {
		return ""
	}
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		c.refuseSecret(name, "must be a URL such as postgres://user:password@host:5432/database")
	}
	return value
}

// redisSets makes a URL of each address.
func (c *checker) redisSets(name, value string) (sets [][]string) {
	if value == "" {
		return nil
	}
	for set := range strings.SplitSeq(value, ";") {
		sets = append(sets, c.redisSet(name, len(sets)+1, set))
	}
	return sets
}

func (c *checker) redisSet(name string, number int, value string) []string {
	var urls []string
	for i, address := range strings.Split(value, ",") {
		u, ok := redisURL(strings.TrimSpace(address))
		if !ok {
			c.refuseSecret(name, fmt.Sprintf("address %d of set %d must be host:port, or a URL such as redis://user:password@host:6379/0 or rediss://… (a comma in a password is written %%2C, a semicolon %%3B)", i+1, number))
		}
		urls = append(urls, u)
	}
	switch len(urls) {
	case 1, 3, 5, 7:
	default:
		c.refuseSecret(name, fmt.Sprintf("set %d names %d nodes: must be 1, 3, 5 or 7", number, len(urls)))
	}
	return urls
}

func redisURL(address string) (string, bool) {
	if !strings.Contains(address, "://") {
		host, port, err := net.SplitHostPort(address)
		if err != nil || host == "" || strings.ContainsAny(host, "/@?#") {
			return "", false
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return "", false
		}
		return (&url.URL{Scheme: "redis", Host: net.JoinHostPort(host, port)}).String(), true
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || u.Hostname() == "" {
		return "", false
	}
	return address, true
}
