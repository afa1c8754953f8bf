package stand

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"

	"github.com/fencelock/fencelock/bench/internal/rawhttp"
)

// ErrNoEtcd says that there is no etcd on this machine.
var ErrNoEtcd = errors.New("no etcd in PATH or /usr/bin: its rows are left out. Install it (Debian: apt-get install etcd-server; or a release from https://github.com/etcd-io/etcd/releases) and run again")

// Etcd is a running server with one member and the default durability.
type Etcd struct {
	*Program
	Addr string
	Path string
}

// findEtcd looks for etcd in the usual places.
func findEtcd() (string, error) {
	if path, err := exec.LookPath("etcd"); err == nil {
		return path, nil
	}
	if path, err := exec.LookPath("/usr/bin/etcd"); err == nil {
		return path, nil
	}
	return "", ErrNoEtcd
}

// StartEtcd starts a server. Without etcd on this machine it returns ErrNoEtcd.
func StartEtcd(ctx context.Context, s *Scope) (*Etcd, error) {
	path, err := findEtcd()
	if err != nil {
		return nil, err
	}
	client, err1 := freePort()
	peers, err2 := freePort()
	dir, err3 := os.MkdirTemp("", "fencelock-bench-etcd-")
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	p, err := startProgram(s, path, nil, "--data-dir", dir, "--logger", "zap", "--log-level", "error",
		"--listen-client-urls", "http://"+client, "--advertise-client-urls", "http://"+client,
		"--listen-peer-urls", "http://"+peers, "--initial-advertise-peer-urls", "http://"+peers,
		"--initial-cluster", "default=http://"+peers)
	if err != nil {
		return nil, err
	}
	e := &Etcd{Program: p, Addr: client, Path: path}
	return e, p.await(ctx, e.healthy)
}

func (e *Etcd) healthy(ctx context.Context) (err error) {
	conn, err := rawhttp.Dial(ctx, e.Addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	resp, err := conn.Do(ctx, rawhttp.AppendRequest(nil, http.MethodGet, "/health", ""))
	if err != nil {
		return err
	}
	if resp.Status != http.StatusOK {
		return fmt.Errorf("health: %d %s", resp.Status, resp.Body)
	}
	return nil
}
