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
	dir string // the folder with the copy
}

// Backup copies the data of a server that [StartPostgres] started, with options of
// pg_basebackup.
func (pg *PG) Backup(options ...string) *Backup {
	pg.t.Helper()
	pg.mustBeOwn("Backup")
	b := &Backup{of: pg}
	pg.t.Cleanup(func() { _ = os.RemoveAll(b.dir) })
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
	if b.dir, err = newServerDir("postgres"); err != nil {
		return err
	}
	cred, err := ownedBy("postgres", b.dir)
	if err != nil {
		return err
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

// Restore starts a server on the backup. It ends with the test. Unless the backup has the recovery
// configuration of a standby, the server ends its recovery at once, as after a restore to the point in time
// of the backup. A backup can be restored once.
func (b *Backup) Restore() *PG {
	b.of.t.Helper()
	srv, err := startOwn("Postgres", b.prepare)
	if err != nil {
		b.of.t.Fatalf("testenv: restore PostgreSQL: %v", err)
	}
	srv.cleanUp(b.of.t)
	copied := *b.of
	copied.admin, copied.srv, copied.await = pgAdmin(srv), srv, srv.awaitReady
	return &copied
}

// recovered returns nil if a server has ended its recovery. A server accepts connections before that.
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

// prepare makes a server that runs on the backup.
func (b *Backup) prepare(s *own) error {
	prog, err := findPostgres()
	if err != nil {
		return err
	}
	cred, err := ownedBy("postgres", s.dir)
	if err != nil {
		return err
	}
	data := filepath.Join(b.dir, "data")
	args := []string{
		"-D", data, "-c", "unix_socket_directories=", "-p", strconv.Itoa(s.port), "-c", "listen_addresses=" + prog.bind(),
		"-c", "max_connections=200", "-c", "shared_buffers=32MB",
	}
	s.lingers, s.answers = true, func() error { return answers(pgAdmin(s)) }
	if _, err := os.Stat(filepath.Join(data, "standby.signal")); err != nil {
		args = append(args, "-c", "recovery_target=immediate", "-c", "recovery_target_action=promote", "-c", "restore_command=false")
		s.answers = func() error { return recovered(pgAdmin(s)) }
		signal := filepath.Join(data, "recovery.signal")
		if err := os.WriteFile(signal, nil, 0o600); err != nil {
			return err
		}
		if _, err := ownedBy("postgres", signal); err != nil {
			return err
		}
	}
	s.server = newPostgresProcess(prog.path, s.dir, args, nil, cred)
	return nil
}
