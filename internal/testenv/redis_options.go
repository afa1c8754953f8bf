package testenv

import (
	"fmt"
	"strings"
)

// Persistence is the persistence setting of a Redis node.
type Persistence int

// The persistence modes.
const (
	// PersistNone keeps everything in memory; after a restart the node is empty.
	PersistNone Persistence = iota
	// PersistRDB writes snapshots, at the latest at a graceful shutdown.
	PersistRDB
	// PersistAOFEverysec logs every write and syncs once a second.
	PersistAOFEverysec
	// PersistAOFAlways logs every write, and syncs it before the reply.
	PersistAOFAlways
)

// config returns the lines of redis.conf for the mode.
func (p Persistence) config() []string {
	switch p {
	case PersistRDB:
		return []string{"save 3600 1 300 100 60 10000", "appendonly no"}
	case PersistAOFEverysec:
		return []string{`save ""`, "appendonly yes", "appendfsync everysec"}
	case PersistAOFAlways:
		return []string{`save ""`, "appendonly yes", "appendfsync always"}
	default:
		return []string{`save ""`, "appendonly no"}
	}
}

// RedisOption changes how a Redis node is started.
type RedisOption func(*redisConfig)

type redisConfig struct {
	persistence Persistence
	user        string // "default" unless WithUser
	password    string
	acl         []string // the named user's rules
	users       []string // the lines of a file of users, instead of user and acl
	tls         bool
	replicaOf   *Redis
	extra       []string
	env         []string
	custom      bool // the node has options, so no server from the environment can take its place
}

func newRedisConfig(opts []RedisOption) redisConfig {
	c := redisConfig{user: "default", custom: len(opts) > 0}
	for _, opt := range opts {
		opt(&c)
	}
	return c
}

// WithPersistence sets what the node writes to disk; the default is [PersistNone].
func WithPersistence(p Persistence) RedisOption {
	return func(c *redisConfig) { c.persistence = p }
}

// WithConfig adds lines to the end of redis.conf, where they override earlier ones.
func WithConfig(lines ...string) RedisOption {
	return func(c *redisConfig) { c.extra = append(c.extra, lines...) }
}

// WithEnv adds NAME=value pairs to the server's environment.
func WithEnv(pairs ...string) RedisOption {
	return func(c *redisConfig) { c.env = append(c.env, pairs...) }
}

// WithPassword gives the default user a password.
func WithPassword(password string) RedisOption {
	return func(c *redisConfig) { c.password = password }
}

// WithUser disables the default user, and makes a user with the given ACL rules. Without rules the user may
// do everything.
func WithUser(name, password string, rules ...string) RedisOption {
	if len(rules) == 0 {
		rules = []string{"~*", "&*", "+@all"}
	}
	return func(c *redisConfig) { c.user, c.password, c.acl = name, password, rules }
}

// WithUsers gives the node a file of users with these lines, in the form of deploy/redis/users.acl.
func WithUsers(lines ...string) RedisOption { return func(c *redisConfig) { c.users = lines } }

// WithTLS makes the node speak only TLS. Its certificate is for 127.0.0.1, from an authority that is made for
// this node; see [Redis.TLSConfig] and [Redis.CAFile].
func WithTLS() RedisOption { return func(c *redisConfig) { c.tls = true } }

// WithReplicaOf starts the node as a replica of another.
func WithReplicaOf(master *Redis) RedisOption {
	return func(c *redisConfig) { c.replicaOf = master }
}

// adminUser is the user as whom testenv itself sends commands, because the test's own user may lack the
// rights.
const (
	adminUser = "testenv"
	adminLine = "user " + adminUser + " on >" + adminUser + " ~* &* +@all"
	usersFile = "users.acl"
)

// file returns the text of redis.conf.
func (c redisConfig) file(dir string, prog program, port int) string {
	lines := []string{
		"bind " + prog.bind(), "protected-mode no", "daemonize no", "dir " + dir,
		"repl-diskless-sync-delay 0", // otherwise a replica's first copy would wait five seconds for a second replica
		"maxmemory-policy noeviction",
	}
	lines = append(lines, c.persistence.config()...)
	lines = append(lines, c.portLines(dir, port)...)
	lines = append(lines, c.authLines(dir)...)
	if c.replicaOf != nil {
		lines = append(lines, fmt.Sprintf("replicaof %s %s", prog.peerHost(), c.replicaOf.port()))
	}
	return strings.Join(append(lines, c.extra...), "\n") + "\n"
}

func (c redisConfig) portLines(dir string, port int) []string {
	if !c.tls {
		return []string{fmt.Sprintf("port %d", port)}
	}
	return []string{
		"port 0", fmt.Sprintf("tls-port %d", port), "tls-auth-clients no", "tls-replication yes",
		"tls-cert-file " + dir + "/" + certFile, "tls-key-file " + dir + "/" + keyFile,
		"tls-ca-cert-file " + dir + "/" + certFile,
	}
}

// authLines returns the lines that define the test's user and the admin. A replica logs in to its master as
// the admin.
func (c redisConfig) authLines(dir string) []string {
	lines := []string{"masteruser " + adminUser, "masterauth " + adminUser}
	if c.users != nil {
		return append(lines, "aclfile "+dir+"/"+usersFile)
	}
	lines = append(lines, adminLine)
	switch {
	case c.user != "default":
		lines = append(lines, "user default off",
			fmt.Sprintf("user %s on >%s %s", c.user, c.password, strings.Join(c.acl, " ")))
	case c.password != "":
		lines = append(lines, "requirepass "+c.password)
	}
	return lines
}
