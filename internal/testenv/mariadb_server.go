package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

func launchMaria(settings []string) (*own, error) {
	return startOwn("MariaDB", func(s *own) error {
		s.answers = func() error { return pingMaria(mariaAdmin(s)) }
		p, err := newMariaProcess(s.dir, s.port, settings)
		if err == nil { // a nil process would be a server that is not nil
			s.server = p
		}
		return err
	})
}

// newMariaProcess makes a data folder, and a server for it, which does not run yet.
func newMariaProcess(dir string, port int, settings []string) (*process, error) {
	program, err := findInstalled(inSbin("mariadbd"), "mariadb-server")
	if err != nil {
		return nil, fmt.Errorf("%w, or name a server in %s", err, EnvMariaDBURL)
	}
	cred, err := ownedBy("mysql", dir)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	tmp := "--tmpdir=" + dir // in a folder that they share, a server that starts deletes the temporary tables of the others
	p := &process{path: program, dir: dir, cred: cred, stopSignal: syscall.SIGTERM, reapSignal: syscall.SIGKILL, args: append([]string{
		"--no-defaults", "--datadir=" + data, "--bind-address=127.0.0.1", "--port=" + strconv.Itoa(port), "--socket=" + filepath.Join(dir, "s"), tmp,
		"--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M", "--max-connections=300",
	}, settings...)}
	install := p.command("mariadb-install-db", "--no-defaults", "--datadir="+data, tmp, "--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-log-file-size=16M")
	if out, err := install.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mariadb-install-db: %w\n%s", err, tail(string(out), 10))
	}
	return p, nil
}

// mariaAdmin returns the URL of the superuser.
func mariaAdmin(s *own) *url.URL {
	return &url.URL{Scheme: "mysql", User: url.User("root"), Host: s.addr()}
}

func pingMaria(server *url.URL) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	db, err := openMaria(server.String())
	if err != nil {
		return err
	}
	return errors.Join(db.PingContext(ctx), db.Close())
}
