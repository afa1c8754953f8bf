package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// Standby starts an asynchronous standby of a server that [StartPostgres] started. SQL
// on it does the rest: pg_promote, and ALTER SYSTEM SET primary_conninfo to cut it off.
func (pg *PG) Standby() *PG {
	pg.t.Helper()
	return pg.Backup("--write-recovery-conf").Restore()
}

// Backup is a copy of a server's data.
type Backup struct {
	of  *PG
	dir string // of the copy
}

// Backup copies the data of a server that [StartPostgres] started, with options of
// pg_basebackup.
func (pg *PG) Backup(options ...string) *Backup {
	pg.t.Helper()
	pg.mustBeOwn("Backup")
	b := &Backup{of: pg}
	if err := b.take(options); err != nil {
		pg.t.Fatalf("testenv: copy PostgreSQL: %v", err)
	}
	return b
}

func (b *Backup) take(options []string) (err error) {
	prog, err := findPostgres()
	if err != nil {
		return err
	}
	if prog.pool != nil {
		return errors.New("this needs an installed PostgreSQL, not a container")
	}
	cred, err := postgresUser()
	if err != nil {
		return err
	}
	if b.dir, err = newServerDir("postgres"); err != nil {
		return err
	}
	if cred != nil {
		if err := os.Chown(b.dir, int(cred.Uid), int(cred.Gid)); err != nil {
			return err
		}
	}
	p := &process{dir: b.dir, cred: cred}
	cmd := p.command(filepath.Join(prog.path, "pg_basebackup"), append([]string{
		"-D", filepath.Join(b.dir, "data"), "-d", b.of.admin, "--checkpoint=fast", "--wal-method=stream", "--no-sync",
	}, options...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_basebackup: %w\n%s", err, tail(string(out), 10))
	}
	return nil
}

// Restore starts a server on the backup, which ends with the test. Without the
// recovery configuration of a standby it ends its recovery at once, as a restore to the
// point in time of the backup does. A backup can be restored once.
func (b *Backup) Restore() *PG {
	b.of.t.Helper()
	srv, err := onFreePort(b.start)
	if err != nil {
		b.of.t.Fatalf("testenv: restore PostgreSQL: %v", err)
	}
	b.of.t.Cleanup(func() {
		if err := srv.remove(); err != nil {
			b.of.t.Errorf("testenv: clean up PostgreSQL: %v", err)
		}
	})
	copied := *b.of
	copied.admin, copied.srv, copied.await = srv.adminURL(), srv, srv.awaitReady
	return &copied
}

// recovered returns nil once a server has ended its recovery. It answers before.
func recovered(adminURL string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, adminURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	var recovering bool
	if err := conn.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&recovering); err != nil {
		return err
	}
	if recovering {
		return errors.New("it recovers still")
	}
	return nil
}

func (b *Backup) start() (*pgServer, error) {
	prog, err := findPostgres()
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
	data := filepath.Join(b.dir, "data")
	args := []string{
		"-D", data, "-c", "unix_socket_directories=", "-p", strconv.Itoa(port), "-c", "listen_addresses=" + prog.bind(),
		"-c", "max_connections=200", "-c", "shared_buffers=32MB",
	}
	_, err = os.Stat(filepath.Join(data, "standby.signal"))
	restores := err != nil
	if restores {
		args = append(args, "-c", "recovery_target=immediate", "-c", "recovery_target_action=promote", "-c", "restore_command=false")
		signal := filepath.Join(data, "recovery.signal")
		if err := os.WriteFile(signal, nil, 0o600); err != nil {
			return nil, err
		}
		if cred != nil {
			if err := os.Chown(signal, int(cred.Uid), int(cred.Gid)); err != nil {
				return nil, err
			}
		}
	}
	s := &pgServer{dir: b.dir, port: port, release: release, server: newPostgresProcess(prog.path, b.dir, args, nil, cred)}
	if err := errors.Join(s.start(), s.awaitReady()); err != nil {
		return nil, errors.Join(err, s.kill())
	}
	if restores {
		if err := poll(readyWithin, func() error { return recovered(s.adminURL()) }); err != nil {
			return nil, errors.Join(err, s.kill())
		}
	}
	return s, nil
}
