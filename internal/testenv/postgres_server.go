package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// pgServer is one PostgreSQL server that this process started.
type pgServer struct {
	server
	dir     string
	port    int
	release func()
}

// fastAndLoose are the settings of a server whose data need not survive it, and
// whose databases may replicate one another.
func fastAndLoose() []string {
	return []string{
		"fsync=off", "synchronous_commit=off", "full_page_writes=off",
		"wal_level=logical", "wal_retrieve_retry_interval=50ms", "wal_receiver_status_interval=1s",
	}
}

// launchPostgres starts a server. Env is added to its environment.
func launchPostgres(settings, env []string) (*pgServer, error) {
	return onFreePort(func() (*pgServer, error) { return tryPostgres(settings, env) })
}

func tryPostgres(settings, env []string) (*pgServer, error) {
	port, release, err := reservePort()
	if err != nil {
		return nil, err
	}
	dir, err := newServerDir("postgres")
	if err != nil {
		release()
		return nil, err
	}
	s := &pgServer{dir: dir, port: port, release: release}
	if s.server, err = newPostgresServer(dir, port, settings, env); err == nil {
		err = s.start()
	}
	if err == nil {
		err = s.awaitReady()
	}
	if err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// adminURL is the superuser's.
func (s *pgServer) adminURL() string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", localAddr(s.port))
}

// awaitReady waits until a server that was started answers. After a kill its old
// workers may need a moment to see that they are orphans; the new server refuses to
// start next to them, so it is started again.
func (s *pgServer) awaitReady() error {
	var final error
	err := poll(readyWithin, func() error {
		if running(s) {
			return answers(s.adminURL())
		}
		if strings.Contains(s.lastWords(), "Address already in use") {
			final = errors.Join(errPortTaken, errors.New(s.lastWords()))
			return nil
		}
		if err := s.start(); err != nil {
			return err
		}
		return errors.New("PostgreSQL ended at once; it printed:\n" + s.lastWords())
	})
	return errors.Join(final, err)
}

func (s *pgServer) lastWords() string { return tail(s.logs(), 10) }

// remove ends the server and removes all its traces.
func (s *pgServer) remove() error {
	defer s.release()
	var err error
	if s.server != nil {
		err = errors.Join(s.kill(), s.close())
	}
	// Orphaned workers may still write while they end.
	return errors.Join(err, poll(exitWithin, func() error { return os.RemoveAll(s.dir) }))
}

// newPostgresServer prepares a server, which does not run yet.
func newPostgresServer(dir string, port int, settings, env []string) (server, error) {
	prog, err := findPostgres()
	if err != nil {
		return nil, err
	}
	args := []string{
		"-p", strconv.Itoa(port), "-c", "listen_addresses=" + prog.bind(),
		"-c", "max_connections=200", "-c", "shared_buffers=32MB",
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
	cred, err := postgresUser()
	if err != nil {
		return nil, err
	}
	if cred != nil {
		if err := os.Chown(dir, int(cred.Uid), int(cred.Gid)); err != nil {
			return nil, err
		}
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

// postgresUser is the user to run as: nil for the test's own, and one without rights if
// that is root, as which PostgreSQL refuses to run.
func postgresUser() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil //nolint:nilnil // no credential is what exec takes for "as I am"
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, err
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
