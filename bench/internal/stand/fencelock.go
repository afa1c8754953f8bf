package stand

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fencelock/fencelock/bench/internal/barehttp"
	"github.com/fencelock/fencelock/bench/internal/peer"
	"github.com/fencelock/fencelock/bench/internal/rawhttp"
)

// Fencelock is a running server.
type Fencelock struct {
	*Program
	Addr string
}

// Build builds the server from this tree into dir, with the flags of a release.
func Build(ctx context.Context, root, dir string) (string, error) {
	path := filepath.Join(dir, "fencelock")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, "./cmd/fencelock")
	cmd.Dir = root
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/fencelock: %w\n%s", err, out)
	}
	return path, nil
}

// StartFencelock starts the server over empty Redis nodes and waits until all
// of them vote.
func StartFencelock(ctx context.Context, s *Scope, path string, redis []string) (*Fencelock, error) {
	return startServer(ctx, s, path, len(redis), "FENCELOCK_REDIS_ADDRS="+strings.Join(redis, ","))
}

// StartFencelockStore starts the server over an empty store.
func StartFencelockStore(ctx context.Context, s *Scope, path, store string) (*Fencelock, error) {
	return startServer(ctx, s, path, 1, "FENCELOCK_STORE="+store)
}

// StartFencelockFile starts the server over its embedded file, which it creates.
func StartFencelockFile(ctx context.Context, s *Scope, path, file string) (*Fencelock, error) {
	return startServer(ctx, s, path, 1, "FENCELOCK_DATA="+file)
}

func startServer(ctx context.Context, s *Scope, path string, nodes int, store string) (*Fencelock, error) {
	env := []string{
		store, "FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0", "FENCELOCK_BOOTSTRAP=new",
		"FENCELOCK_LOG_FORMAT=json", "FENCELOCK_MAX_TTL=10m", "FENCELOCK_ALLOWED_HOSTS=" + rawhttp.Host,
	}
	p, err := startProgram(s, path, env, "serve")
	if err != nil {
		return nil, err
	}
	f := &Fencelock{Program: p}
	return f, p.await(ctx, func(ctx context.Context) error { return f.ready(ctx, nodes) })
}

// ready reads the address from the log's first line, and asks the server whether all nodes vote.
func (f *Fencelock) ready(ctx context.Context, nodes int) (err error) {
	if f.Addr == "" {
		if f.Addr, err = listenAddr(f.out.text()); err != nil {
			return err
		}
	}
	return f.Voting(ctx, nodes)
}

// Voting returns nil if exactly the given number of nodes votes.
func (f *Fencelock) Voting(ctx context.Context, nodes int) error {
	voting, err := peer.Ready(ctx, f.Addr)
	if err == nil && voting != nodes {
		err = fmt.Errorf("%d of %d nodes vote", voting, nodes)
	}
	return err
}

// listenAddr reads the address from the log's first line.
func listenAddr(log string) (string, error) {
	line, _, ok := strings.Cut(log, "\n")
	if !ok {
		return "", errors.New("the server has not said yet where it listens")
	}
	var first struct {
		Addr string `json:"addr"`
	}
	if err := json.Unmarshal([]byte(line), &first); err != nil {
		return "", fmt.Errorf("the log's first line: %w", err)
	}
	if first.Addr == "" {
		return "", fmt.Errorf("the log's first line names no address: %s", line)
	}
	return first.Addr, nil
}

// StartBareHTTP starts this program as the server of recorded responses.
func StartBareHTTP(ctx context.Context, s *Scope, answers []barehttp.Answer) (*Fencelock, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(answers) //nolint:musttag // read by this program alone
	if err != nil {
		return nil, err
	}
	p, err := startProgram(s, path, []string{barehttp.Variable + "=" + string(text)}, barehttp.Command)
	if err != nil {
		return nil, err
	}
	f := &Fencelock{Program: p}
	return f, p.await(ctx, func(context.Context) (err error) {
		f.Addr, err = listenAddr(f.out.text())
		return err
	})
}
