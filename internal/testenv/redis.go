package testenv

import (
	"context"
	"crypto/tls"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// readyWithin bounds how long a server may take until it responds.
	readyWithin = time.Minute
	// commandWithin bounds one of testenv's own commands to a server.
	commandWithin = 10 * time.Second
)

// Redis is a Redis server that belongs to one test.
type Redis struct {
	control
	config redisConfig
	addr   string
	prog   program
	dir    string // "" for a server from the environment
	tls    *tls.Config
	admin  *redis.Client
}

// StartRedis starts a Redis node and returns when it responds.
func StartRedis(t testing.TB, opts ...RedisOption) *Redis {
	t.Helper()
	return StartRedisN(t, 1, opts...)[0]
}

// StartRedisN starts n independent Redis nodes with the same options, and returns when all respond.
func StartRedisN(t testing.TB, n int, opts ...RedisOption) []*Redis {
	t.Helper()
	NeedsServer(t)
	config := newRedisConfig(opts)
	if addrs := os.Getenv(EnvRedisAddrs); addrs != "" {
		return externalRedis(t, n, config, strings.Split(addrs, ","))
	}
	nodes := make([]*Redis, 0, n)
	for range n {
		node := newRedis(t, config, "")
		srv, err := startOwn("Redis", node.prepare)
		if err != nil {
			t.Fatalf("testenv: start Redis: %v", err)
		}
		t.Cleanup(func() { _ = node.admin.Close() })
		srv.cleanUp(t)
		nodes = append(nodes, node)
	}
	return nodes
}

// prepare makes the node a server of this process, which is not started yet.
func (r *Redis) prepare(s *own) (err error) {
	if r.prog, err = findRedis(); err != nil {
		return err
	}
	r.dir, r.addr, r.name = s.dir, s.addr(), "Redis "+s.addr()
	r.srv, r.await, s.answers = s, s.awaitReady, r.ready
	if err := r.writeFiles(s.port); err != nil {
		return err
	}
	r.admin = r.newClient(adminUser, adminUser)
	s.server, err = newRedisServer(r.prog, s.dir, s.port, r.config.env)
	return err
}

func newRedis(t testing.TB, config redisConfig, addr string) *Redis {
	r := &Redis{config: config, addr: addr}
	r.control = control{
		t: t, name: "Redis " + addr,
		shared: "it comes from " + EnvRedisAddrs + "; unset the variable, so that this test starts servers of its own",
	}
	return r
}

// newRedisServer prepares the server for a folder that contains redis.conf.
func newRedisServer(prog program, dir string, port int, env []string) (server, error) {
	if prog.pool != nil {
		return redisContainer(prog.pool, dir, port, env)
	}
	return &process{
		path: prog.path, args: []string{filepath.Join(dir, "redis.conf")}, env: env, dir: dir,
		stopSignal: syscall.SIGTERM, reapSignal: syscall.SIGKILL,
	}, nil
}

// writeFiles writes redis.conf and, for TLS, the certificates.
func (r *Redis) writeFiles(port int) error {
	if r.config.tls {
		config, err := writeCertificate(r.dir)
		if err != nil {
			return err
		}
		r.tls = config
	}
	if r.config.users != nil {
		users := strings.Join(append(r.config.users, adminLine), "\n") + "\n"
		if err := os.WriteFile(filepath.Join(r.dir, usersFile), []byte(users), 0o600); err != nil {
			return err
		}
	}
	text := r.config.file(r.dir, r.prog, port)
	return os.WriteFile(filepath.Join(r.dir, "redis.conf"), []byte(text), 0o600)
}

// ready returns nil if the node responds and, if it was started as a replica, has its master's data.
func (r *Redis) ready() error {
	if err := r.do("ping").Err(); err != nil {
		return err
	}
	if r.config.replicaOf != nil {
		return r.inStep()
	}
	return nil
}

// do executes a command as testenv's own user.
func (r *Redis) do(args ...any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), commandWithin)
	defer cancel()
	return r.admin.Do(ctx, args...)
}

// newClient makes a client that hides nothing from the test: it does not retry, sends no commands of its own,
// and obeys the caller's deadline.
func (r *Redis) newClient(user, password string) *redis.Client {
	if user == "default" && password == "" {
		user = ""
	}
	return redis.NewClient(&redis.Options{
		Addr: r.addr, Username: user, Password: password, TLSConfig: r.tls,
		MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// tail returns the text's last n lines.
func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Addr returns the node's address as host:port. A restart does not change it.
func (r *Redis) Addr() string { return r.addr }

// port returns the port without the host.
func (r *Redis) port() string {
	_, port, _ := strings.Cut(r.addr, ":")
	return port
}

// URL returns a redis:// or rediss:// URL of database 0 on the node, with the credentials.
func (r *Redis) URL() string {
	u := url.URL{Scheme: "redis", Host: r.addr, Path: "/0"}
	if r.tls != nil {
		u.Scheme = "rediss"
	}
	if r.config.password != "" {
		u.User = url.UserPassword(r.config.user, r.config.password)
	}
	return u.String()
}

// Client makes a client of the test's own user, which is closed at the end of the test. The client never
// retries, and obeys the deadlines of its contexts.
func (r *Redis) Client() *redis.Client {
	c := r.newClient(r.config.user, r.config.password)
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// TLSConfig returns a configuration that trusts the node's certificate; nil for a node without TLS.
func (r *Redis) TLSConfig() *tls.Config { return r.tls.Clone() }

// CAFile returns the path of the authority's certificate in PEM, for programs that read a file; "" for a node
// without TLS.
func (r *Redis) CAFile() string {
	if r.tls == nil {
		return ""
	}
	return filepath.Join(r.dir, certFile)
}

// KeyFile returns the path of the key of that certificate. A client may use certificate and key as its own.
func (r *Redis) KeyFile() string { return filepath.Join(r.dir, keyFile) }

// RedisAs makes a client of another user of the node, which is closed at the end of the test.
func RedisAs(t testing.TB, node *Redis, user, password string) *redis.Client {
	c := node.newClient(user, password)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
