package testenv

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// PgBouncer starts a pooler in transaction mode before a database, and returns the URL of
// that database through it, for the same user.
func PgBouncer(t testing.TB, database string) string {
	t.Helper()
	NeedsServer(t)
	p, err := onFreePort(func() (*pooler, error) { return startPooler(database) })
	if err != nil {
		t.Fatalf("testenv: start PgBouncer: %v", err)
	}
	t.Cleanup(func() {
		if err := p.remove(); err != nil {
			t.Errorf("testenv: clean up PgBouncer: %v", err)
		}
	})
	return p.url
}

// pooler is a PgBouncer that this process started.
type pooler struct {
	*process
	url     string
	release func()
}

func (p *pooler) remove() error {
	defer p.release()
	err := p.kill()
	if err == nil {
		err = os.RemoveAll(p.dir)
	}
	return err
}

const poolerConfig = `[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 3
`

func startPooler(database string) (p *pooler, err error) {
	path, err := findPooler()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(database)
	if err != nil {
		return nil, err
	}
	cred, err := postgresUser()
	if err != nil {
		return nil, err
	}
	port, release, err := reservePort()
	if err != nil {
		return nil, err
	}
	dir, err := newServerDir("pgbouncer")
	if err != nil {
		release()
		return nil, err
	}
	if cred != nil {
		if err := os.Chown(dir, int(cred.Uid), int(cred.Gid)); err != nil {
			return nil, err
		}
	}
	users, config := filepath.Join(dir, "users.txt"), filepath.Join(dir, "pgbouncer.ini")
	for file, text := range map[string]string{
		users:  fmt.Sprintf("%q \"\"\n", u.User.Username()),
		config: fmt.Sprintf(poolerConfig, u.Hostname(), u.Port(), port, users),
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	p = &pooler{release: release, process: &process{
		path: path, args: []string{config}, dir: dir, cred: cred, stopSignal: syscall.SIGINT, reapSignal: syscall.SIGKILL,
	}}
	u.Host = localAddr(port)
	p.url = u.String()
	if err := p.start(); err != nil {
		return nil, err
	}
	return p, poll(readyWithin, func() error { return answers(p.url) })
}

func findPooler() (string, error) {
	look := func() string {
		for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
			if path, err := exec.LookPath(name); err == nil {
				return path
			}
		}
		return ""
	}
	if look() == "" {
		if err := aptInstall([]string{"pgbouncer"}, func() bool { return look() != "" }); err != nil {
			return "", fmt.Errorf("no PgBouncer on this machine: %w", err)
		}
	}
	return look(), nil
}
