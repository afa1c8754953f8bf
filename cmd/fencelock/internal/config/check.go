package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/engine"
	"github.com/fencelock/fencelock/lockcore"
)

const (
	maxPrefixes = 20 // each prefix adds a series to every lock metric
)

// check checks the values, alone and in combination, and sets the defaults that depend on other values.
func (p *problems) check(c *Config) {
	p.checkTags(c)
	p.address("FENCELOCK_LISTEN", c.Listen, c)
	p.address("FENCELOCK_ADMIN_LISTEN", c.AdminListen, c)
	var err error
	if c.RedisSets, err = redisSets(c.RedisAddrs); err != nil {
		p.refuse("FENCELOCK_REDIS_ADDRS", err.Error())
	}
	if c.RedisNextSets, err = redisSets(c.RedisNextAddrs); err != nil {
		p.refuse("FENCELOCK_REDIS_NEXT_ADDRS", err.Error())
	} else if c.RedisNextSets != nil && c.RedisSets == nil {
		p.refuse("FENCELOCK_REDIS_NEXT_ADDRS", "needs FENCELOCK_REDIS_ADDRS, with the current node sets")
	}
	p.store(c)
	if c.DatabaseURL != "" && !isPostgres(c.DatabaseURL) && !strings.HasPrefix(c.DatabaseURL, "mysql://") {
		p.refuse("FENCELOCK_DATABASE_URL", mustBePostgres+", or mysql://user:password@host:3306/database")
	}
	if c.ProofRequired && c.ProofKeyFile == "" {
		p.refuse("FENCELOCK_PROOF_REQUIRED", "needs FENCELOCK_PROOF_KEY_FILE, with the keys that verify the proofs")
	}
	if !goodPrefixes(c.MetricsPrefixes) {
		p.refuse("FENCELOCK_METRICS_PREFIXES", fmt.Sprintf("must be at most %d different prefixes such as orders/,invoices/, none of them empty", maxPrefixes))
	}
	p.hosts(c.AllowedHosts)
	p.durations(c)
	p.oidc(c)
	p.tls(c)
}

const mustBePostgres = "must be a URL such as postgres://user:password@host:5432/database" //nolint:gosec // an example

// isPostgres checks only the scheme, because url.Parse rejects a URL with several hosts.
func isPostgres(text string) bool {
	return strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://")
}

// store checks that the locks are configured to be in exactly one place.
func (p *problems) store(c *Config) {
	_, known := engine.Of(c.Store)
	switch {
	case c.Store == "":
	case !known:
		p.refuse("FENCELOCK_STORE", "must be a URL such as "+engine.Examples())
	case c.RedisAddrs != "":
		p.refuse("FENCELOCK_STORE", "and FENCELOCK_REDIS_ADDRS are two places for the locks: set one of them")
	case given("FENCELOCK_DATA"):
		p.refuse("FENCELOCK_STORE", "and FENCELOCK_DATA are two places for the locks: set one of them")
	}
}

func (p *problems) address(name, address string, c *Config) {
	_, port, err := net.SplitHostPort(address)
	if n, errPort := strconv.ParseUint(port, 10, 16); err != nil || errPort != nil || strconv.FormatUint(n, 10) != port {
		p.refuse(name, "must be host:port with a port from 0 to 65535, such as 127.0.0.1:8080")
	}
	if !OnLoopback(address) && !c.Insecure && c.AccessFile == "" {
		p.refuse(name, "is not a loopback address, and there is no access control: any client that reaches it may lock, break and write. "+
			"Name the callers in FENCELOCK_ACCESS_FILE (fencelock token new makes a line), or set FENCELOCK_INSECURE=true if something else controls access")
	}
}

// OnLoopback reports whether only this machine can reach a host:port.
func OnLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && loopback(host)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func goodPrefixes(list []string) bool {
	for i, prefix := range list {
		if i == maxPrefixes || lockcore.ValidateResource(prefix) != nil || slices.Contains(list[:i], prefix) {
			return false
		}
	}
	return true
}

func (p *problems) hosts(list []string) {
	for i, host := range list {
		list[i] = strings.TrimSpace(host)
		if list[i] == "" || list[i] != edge.AnyHost && strings.ContainsAny(list[i], "*/:@ ") && net.ParseIP(list[i]) == nil {
			p.refuse("FENCELOCK_ALLOWED_HOSTS", "must be names such as locks.example.com, without scheme and port, separated by commas, or *")
		}
	}
}

// storeMinTTL is the shortest TTL if the locks are in FENCELOCK_STORE. Half of it is many times as long
// as a commit over the network, and leaves time for a pause of the disk.
const storeMinTTL = 250 * time.Millisecond

// MinTTL returns the shortest TTL that the service accepts.
func (c Config) MinTTL() time.Duration {
	if c.Store != "" {
		return storeMinTTL
	}
	return lockcore.MinTTL
}

func (p *problems) durations(c *Config) {
	const long = 365 * 24 * time.Hour
	least := c.MinTTL()
	if !p.between("FENCELOCK_MAX_TTL", c.MaxTTL, least, 24*time.Hour) {
		c.MaxTTL = 24 * time.Hour // so that one mistake is not reported four times
	}
	if !given("FENCELOCK_DEFAULT_TTL") {
		c.DefaultTTL = min(c.DefaultTTL, c.MaxTTL)
	}
	p.between("FENCELOCK_DEFAULT_TTL", c.DefaultTTL, least, c.MaxTTL)
	usual, longest := 2*time.Second, c.MaxTTL/2
	if c.RedisAddrs != "" { // with several nodes, the others decide without a late one
		usual, longest = time.Second, c.MaxTTL/10
	}
	if !given("FENCELOCK_NODE_TIMEOUT") {
		c.NodeTimeout = min(usual, longest)
	}
	p.between("FENCELOCK_NODE_TIMEOUT", c.NodeTimeout, time.Millisecond, longest)
	p.between("FENCELOCK_NODE_DOWN_AFTER", c.NodeDownAfter, 10*time.Millisecond, 10*time.Second)
	p.between("FENCELOCK_COUNTER_TTL", c.CounterTTL, c.MaxTTL, long)
	if c.MaxHold != 0 {
		p.between("FENCELOCK_MAX_HOLD", c.MaxHold, c.MaxTTL, long)
	}
}

// between refuses a duration that is out of bounds, or has fractions of a millisecond.
func (p *problems) between(name string, d, least, most time.Duration) bool {
	if d < least || d > most || d%time.Millisecond != 0 {
		p.refuse(name, fmt.Sprintf("must be a duration such as 250ms or 30s, in whole milliseconds, from %s to %s", least, most))
	}
	return !slices.Contains(p.refused, name)
}

func (p *problems) oidc(c *Config) {
	if c.OIDCIssuer == "" {
		if c.OIDCAudience != "" {
			p.refuse("FENCELOCK_OIDC_AUDIENCE", "has an effect only with FENCELOCK_OIDC_ISSUER: set that, too, or remove this")
		}
		return
	}
	u, err := url.Parse(c.OIDCIssuer)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())):
		p.refuse("FENCELOCK_OIDC_ISSUER", "must be a URL such as https://issuer.example.com, exactly as in the tokens")
	case c.OIDCAudience == "":
		p.refuse("FENCELOCK_OIDC_AUDIENCE", "must be set with FENCELOCK_OIDC_ISSUER: without it, tokens that were issued for other services would be accepted")
	case c.AccessFile == "":
		p.refuse("FENCELOCK_OIDC_ISSUER", "needs FENCELOCK_ACCESS_FILE, which says what each identity may do")
	}
}

func (p *problems) tls(c *Config) {
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		p.refuse("FENCELOCK_TLS_CERT_FILE", "and FENCELOCK_TLS_KEY_FILE go together: set both, or neither")
	}
	switch {
	case c.TLSClientCAFile == "":
	case c.TLSCertFile == "":
		p.refuse("FENCELOCK_TLS_CLIENT_CA_FILE", "needs FENCELOCK_TLS_CERT_FILE and FENCELOCK_TLS_KEY_FILE: certificates are shown over TLS only")
	case c.AccessFile == "":
		p.refuse("FENCELOCK_TLS_CLIENT_CA_FILE", "needs FENCELOCK_ACCESS_FILE, which says what each certificate's name may do")
	}
}

// redisSets parses sets of nodes. Its errors contain no address, because an address may contain a
// password.
func redisSets(text string) (sets [][]string, err error) {
	if text == "" {
		return nil, nil
	}
	for set := range strings.SplitSeq(text, ";") {
		var urls []string
		for address := range strings.SplitSeq(set, ",") {
			u, err := redisURL(strings.TrimSpace(address))
			if err != nil {
				return nil, fmt.Errorf("set %d has an address, number %d, that %w", len(sets)+1, len(urls)+1, err)
			}
			urls = append(urls, u)
		}
		if n := len(urls); n > 7 || n%2 == 0 {
			return nil, fmt.Errorf("set %d names %d nodes: must be 1, 3, 5 or 7", len(sets)+1, n)
		}
		sets = append(sets, urls)
	}
	return sets, nil
}

var shortAddress = regexp.MustCompile(`^[^/@?#]+:\d+(/\d+)?$`)

// redisURL makes a URL from host:port or host:port/database, the form in which /readyz names nodes. It
// does not change a URL.
func redisURL(address string) (string, error) {
	text := address
	if shortAddress.MatchString(address) {
		text = "redis://" + address
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || u.Hostname() == "" {
		return "", errors.New("is not host:port, host:port/database or a URL such as redis://user:password@host:6379/0 or rediss://… (a comma in a password is written %2C, a semicolon %3B)")
	}
	if _, err := strconv.ParseUint(u.Port(), 10, 16); err != nil && u.Port() != "" {
		return "", errors.New("has no port from 0 to 65535")
	}
	return text, nil
}
