package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// node is a Redis node and the means to break it.
type node struct {
	redis  *testenv.Redis
	spare  *testenv.Redis // the Redis to which it fails over
	admin  *redis.Client  // connects directly, bypassing every fault
	clock  *Clock         // nil where clocks cannot be shifted
	router *testenv.Router
	lines  []*testenv.Proxy // one per server
	moved  bool             // its address points to the spare
	aof    bool             // it writes an append-only file
}

// persistences are the persistence settings of the nodes.
var persistences = [nodes]testenv.Persistence{
	testenv.PersistNone, testenv.PersistRDB, testenv.PersistAOFEverysec, testenv.PersistAOFAlways, testenv.PersistAOFAlways,
}

// firstAOF is the first node that writes an append-only file.
const firstAOF = 2

// Stand is a whole service: five Redis nodes, Postgres and three servers.
type Stand struct {
	t       testing.TB
	config  Config
	nodes   []*node
	engine  Engine      // nil if the stand has nodes, or the embedded file
	pg      *testenv.PG // for the guard
	pgLine  *testenv.Proxy
	servers []*server
	http    *http.Client
	began   time.Time
	gate    gate
	ruler   *ruler
	marks   map[string]mark // by resource, at the end of the previous round
	rounds  int
	// NoClocks says why clocks cannot be shifted here; nil if they can.
	NoClocks error
}

// Start builds a stand. It is removed when the test ends.
func Start(tb testing.TB, config Config) *Stand {
	tb.Helper()
	s := &Stand{t: tb, config: config, began: time.Now(), marks: map[string]mark{}}
	s.startNodes()
	s.pg = testenv.StartPostgres(tb)
	s.startServers()
	return s
}

// StartSingle builds a stand of one server on the embedded file in dir, without
// Redis nodes and Postgres.
func StartSingle(tb testing.TB, config Config, dir string) *Stand {
	tb.Helper()
	s := &Stand{t: tb, config: config, began: time.Now(), marks: map[string]mark{}}
	single := startServer(tb, "server-0", "FENCELOCK_DATA="+filepath.Join(dir, "fencelock.db"),
		"FENCELOCK_MAX_TTL="+config.MaxTTL.String(), "FENCELOCK_NODE_TIMEOUT="+config.NodeTimeout.String())
	s.servers = []*server{single}
	s.http = &http.Client{Transport: newTransport(s.servers)}
	tb.Cleanup(s.http.CloseIdleConnections)
	s.settle(1)
	return s
}

// StartEngine builds a stand of servers that keep their locks in an engine.
func StartEngine(tb testing.TB, config Config, engine Engine) *Stand {
	tb.Helper()
	s := &Stand{t: tb, config: config, engine: engine, began: time.Now(), marks: map[string]mark{}}
	s.pg = testenv.StartPostgres(tb)
	s.startServers()
	return s
}

// now returns the monotonic time since the stand's start.
func (s *Stand) now() time.Duration { return time.Since(s.began) }

// away reports that the server was stopped, or cut off, at some moment in a period.
func (s *Stand) away(server int, from, to time.Duration) bool {
	of := s.servers[server]
	of.mu.Lock()
	defer of.mu.Unlock()
	return slices.ContainsFunc(of.outages, func(o outage) bool { return o.from.Sub(s.began) <= to && from <= o.to.Sub(s.began) })
}

func (s *Stand) resource(i int) string { return fmt.Sprint("chaos/r", i) }

func (s *Stand) startNodes() {
	dir := s.t.TempDir()
	library, err := BuildShim(dir)
	s.NoClocks = err
	for i := range nodes {
		s.nodes = append(s.nodes, s.startNode(dir, library, i))
	}
	if s.NoClocks == nil {
		s.NoClocks = s.nodes[0].clock.obeyed(s.t, s.nodes[0].admin)
	}
}

func (s *Stand) startNode(dir, library string, i int) *node {
	n := &node{aof: i >= firstAOF}
	opts := []testenv.RedisOption{testenv.WithPersistence(persistences[i])}
	for server := range servers {
		user, password := userOf(server)
		opts = append(opts, testenv.WithConfig(fmt.Sprintf("user %s on >%s ~* &* +@all", user, password)))
	}
	if library != "" {
		var option testenv.RedisOption
		n.clock, option = NewClock(s.t, dir, library, i)
		opts = append(opts, option)
	}
	n.redis, n.spare = testenv.StartRedis(s.t, opts...), testenv.StartRedis(s.t, opts...)
	n.admin = n.redis.Client()
	n.router = testenv.StartRouter(s.t, "127.0.0.1:0", n.redis.Addr(), servers, whose)
	for server := range servers {
		n.lines = append(n.lines, n.router.Proxy(server))
	}
	return n
}

// userOf returns the user and password by which a router recognises a server.
func userOf(server int) (user, password string) {
	return fmt.Sprint("s", server), userMark + strconv.Itoa(server)
}

// startServers bootstraps the cluster with one server that may skip the first wait, and then starts all
// servers without that permission, as operators should.
func (s *Stand) startServers() {
	s.pgLine = testenv.StartProxy(s.t, hostOf(s.t, s.pg.OwnerURL()))
	if s.engine == nil {
		s.start(1, "FENCELOCK_BOOTSTRAP=new")
		s.servers[0].Shutdown()
	}
	s.start(servers)
}

// start starts n servers, and returns when they see every node vote.
func (s *Stand) start(n int, more ...string) {
	s.t.Helper()
	s.servers = nil
	for i := range n {
		s.servers = append(s.servers, startServer(s.t, fmt.Sprint("server-", i), append(s.environment(i), more...)...))
	}
	s.http = &http.Client{Transport: newTransport(s.servers)}
	s.t.Cleanup(s.http.CloseIdleConnections)
	s.settle(n)
}

// settle waits until the first n servers see every node vote.
func (s *Stand) settle(servers int) {
	s.t.Helper()
	if s.ruler == nil {
		s.ruler = startRuler(s)
	}
	ctx, stop := context.WithCancel(s.t.Context())
	var measured sync.WaitGroup
	defer measured.Wait()
	defer stop()
	measured.Go(func() { s.ruler.run(ctx) })
	testenv.Eventually(s.t, time.Minute, func() error { return s.settledAt(servers) })
}

func (s *Stand) environment(i int) []string {
	user, password := userOf(i)
	addrs := make([]string, 0, nodes)
	for _, n := range s.nodes {
		addrs = append(addrs, fmt.Sprintf("redis://%s:%s@%s/0", user, password, n.router.Addr()))
	}
	locks := "FENCELOCK_REDIS_ADDRS=" + strings.Join(addrs, ",")
	if s.engine != nil {
		locks = "FENCELOCK_STORE=" + s.engine.Store(i)
	}
	return []string{
		locks,
		"FENCELOCK_DATABASE_URL=" + withHost(s.t, s.pg.OwnerURL(), s.pgLine.Addr()),
		"FENCELOCK_MAX_TTL=" + s.config.MaxTTL.String(),
		"FENCELOCK_NODE_TIMEOUT=" + s.config.NodeTimeout.String(),
	}
}

func hostOf(tb testing.TB, text string) string {
	tb.Helper()
	u, err := url.Parse(text)
	if err != nil {
		tb.Fatal(err)
	}
	return u.Host
}

func withHost(tb testing.TB, text, host string) string {
	tb.Helper()
	u, err := url.Parse(text)
	if err != nil {
		tb.Fatal(err)
	}
	u.Host = host
	return u.String()
}

// settled returns nil once every server sees every node vote.
func (s *Stand) settled() error { return s.settledAt(len(s.servers)) }

// settledAt also reports whether the machine was too busy for the servers.
func (s *Stand) settledAt(servers int) error {
	var errs []error
	for i := range servers {
		errs = append(errs, s.allVoting(i))
	}
	err := errors.Join(errs...)
	if late := len(s.ruler.lates()) / 2; err != nil && late > 0 {
		err = fmt.Errorf("%w\nthe machine: a Redis that no fault is about was late %d times, by %s or more", err, late, s.config.NodeTimeout/2)
	}
	return err
}

func (s *Stand) allVoting(server int) error {
	a := s.send(s.t.Context(), server, request{method: http.MethodGet, path: "/readyz"})
	var ready wire.Ready
	if a.status == 0 || json.Unmarshal(a.body, &ready) != nil {
		return fmt.Errorf("server %d does not say whether it is ready", server)
	}
	if ready.Voting < max(1, len(s.nodes)) {
		return fmt.Errorf("server %d: %s", server, a.body)
	}
	return nil
}

// peek reads a record without a token. It sets only the operation's status.
func (s *Stand) peek(ctx context.Context, o *op) (value string) {
	a := s.send(ctx, o.Server, request{method: http.MethodGet, path: guardedPath(o.Resource)})
	value = o.readRecord(&a)
	o.Status = a.status
	return value
}

// locks lists the locks on all nodes, each with its node. On an engine, it lists the locks that a server
// reports.
func (s *Stand) locks() ([]string, error) {
	if s.engine != nil {
		return s.listed()
	}
	var all []string
	for i, n := range s.nodes {
		keys := n.admin.Scan(s.t.Context(), 0, "l:*", 1000).Iterator()
		for keys.Next(s.t.Context()) {
			all = append(all, fmt.Sprintf("node %d: %s", i, keys.Val()))
		}
		if err := keys.Err(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (s *Stand) listed() (all []string, err error) {
	a := s.send(s.t.Context(), 0, request{method: http.MethodGet, path: "/locks?prefix=chaos/"})
	var list wire.LockPage
	if a.into(&list); a.status != http.StatusOK {
		return nil, fmt.Errorf("the list of locks: status %d", a.status)
	}
	for _, lock := range list.Locks {
		all = append(all, lock.Resource)
	}
	return all, nil
}
