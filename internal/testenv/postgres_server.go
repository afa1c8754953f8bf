package testenv

import (
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"
)

// fastAndLoose returns the settings of a server whose data may be lost in a crash, and whose databases can
// replicate to each other.
func fastAndLoose() []string {
	return []string{
		"fsync=off", "synchronous_commit=off", "full_page_writes=off",
		"wal_level=logical", "wal_retrieve_retry_interval=50ms", "wal_receiver_status_interval=1s",
	}
}

// launchPostgres starts a server. Env is added to its environment.
func launchPostgres(settings, env []string) (*own, error) {
	return startOwn("Postgres", func(s *own) (err error) {
		s.lingers, s.answers = true, func() error { return answers(pgAdmin(s)) }
		s.server, err = newPostgresServer(s.dir, s.port, settings, env)
		return err
	})
}

// pgAdmin returns the URL of the superuser.
func pgAdmin(s *own) string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", s.addr())
}

// newPostgresServer prepares a server, which is not started yet.
func newPostgresServer(dir string, port int, settings, env []string) (server, error) {
	prog, err := findPostgres()
	if err != nil {
		return nil, err
	}
	args := []string{
		"-p", strconv.Itoa(port), "-c", "listen_addresses=" + prog.bind(),
		"-c", "max_connections=200", "-c", "shared_buffers=32MB", "-c", "max_wal_size=256MB",
	}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	switch {
	case prog.pool == nil:
		return localPostgresServer(prog.path, dir, args, env)
	case len(env) > 0:
		return nil, fmt.Errorf("the environment %v is for an installed PostgreSQL, not for a container: install one", env)
	}
	return postgresContainer(prog.pool, dir, port, args)
}

// localPostgresServer makes the data folder for the program in bin.
func localPostgresServer(bin, dir string, args, env []string) (server, error) {
	cred, err := ownedBy("postgres", dir)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	p := newPostgresProcess(bin, dir, append([]string{"-D", data, "-c", "unix_socket_directories="}, args...), env, cred)
	initdb := p.command(filepath.Join(bin, "initdb"), "-D", data,
		"-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, tail(string(out), 10))
	}
	return p, nil
}

func newPostgresProcess(bin, dir string, args, env []string, cred *syscall.Credential) *process {
	return &process{
		path: filepath.Join(bin, "postgres"), dir: dir, env: env, cred: cred, withWorkers: true, args: args,
		stopSignal: syscall.SIGINT, reapSignal: syscall.SIGQUIT,
	}
}
