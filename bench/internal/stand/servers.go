package stand

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/bench/internal/cpu"
	"github.com/fencelock/fencelock/internal/testenv"
)

// Redis is a set of independent nodes.
type Redis struct {
	Nodes   []*testenv.Redis
	PIDs    []int
	Version string
}

// StartRedis starts n nodes.
func StartRedis(ctx context.Context, s *Scope, n int, mode testenv.Persistence) (*Redis, error) {
	r := &Redis{}
	err := Guard(func() error { //nolint:contextcheck // testenv makes contexts of its own
		r.Nodes = testenv.StartRedisN(s, n, testenv.WithPersistence(mode))
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, node := range r.Nodes {
		info, err := node.Client().InfoMap(ctx, "server").Result()
		if err != nil {
			return nil, err
		}
		pid, err := strconv.Atoi(info["Server"]["process_id"])
		if err != nil {
			return nil, fmt.Errorf("process of Redis %s: %w", node.Addr(), err)
		}
		r.PIDs, r.Version = append(r.PIDs, pid), info["Server"]["redis_version"]
	}
	return r, nil
}

// URLs returns the nodes' URLs with a database number. Contenders share the servers, but each has
// its own database.
func (r *Redis) URLs(database int) []string {
	return redisURLs(r.Addrs(), database)
}

// Addrs returns the addresses as host:port.
func (r *Redis) Addrs() (addrs []string) {
	for _, n := range r.Nodes {
		addrs = append(addrs, n.Addr())
	}
	return addrs
}

func redisURLs(addrs []string, database int) []string {
	urls := make([]string, len(addrs))
	for i, addr := range addrs {
		urls[i] = fmt.Sprintf("redis://%s/%d", addr, database)
	}
	return urls
}

// CPU is the processor time of all nodes.
func (r *Redis) CPU() (total time.Duration) {
	for _, pid := range r.PIDs {
		total += cpu.Process(pid)
	}
	return total
}

// Postgres is a server that syncs to disk.
type Postgres struct {
	URL     string
	Version string
	pid     int
}

// StartPostgres starts a server.
func StartPostgres(ctx context.Context, s *Scope) (*Postgres, error) {
	p := &Postgres{}
	err := Guard(func() error { //nolint:contextcheck // testenv makes contexts of its own
		p.URL = testenv.StartPostgres(s).OwnerURL()
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := p.ask(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// ask finds the server's version and its main process, which is the parent of the process that
// serves the connection.
func (p *Postgres) ask(ctx context.Context) (err error) {
	conn, err := pgx.Connect(ctx, p.URL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var worker int
	row := conn.QueryRow(ctx, "SELECT pg_backend_pid(), current_setting('server_version')")
	if err := row.Scan(&worker, &p.Version); err != nil {
		return err
	}
	p.pid, err = cpu.Parent(worker)
	return err
}

// CPU is the processor time of the server's running processes.
func (p *Postgres) CPU() (total time.Duration) {
	for _, pid := range cpu.Family(p.pid) {
		total += cpu.Process(pid)
	}
	return total
}

// version asks a program for its version and returns the last word of the first line.
func version(ctx context.Context, path string, args ...string) string {
	out, err := exec.CommandContext(ctx, path, args...).Output()
	line, _, _ := strings.Cut(string(out), "\n")
	words := strings.Fields(line)
	if err != nil || len(words) == 0 {
		return "unknown"
	}
	return words[len(words)-1]
}

// Version returns the version that etcd prints.
func (e *Etcd) Version(ctx context.Context) string { return version(ctx, e.Path, "--version") }
