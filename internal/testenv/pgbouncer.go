package testenv

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// PgBouncer starts a pooler for a database, in a mode (session, transaction, statement). It returns the URL
// of the database through the pooler, for the same user.
func PgBouncer(t testing.TB, database, mode string) string {
	t.Helper()
	NeedsServer(t)
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	p, err := startOwn("PgBouncer", func(s *own) error {
		through := *u
		through.Host = s.addr()
		s.answers = func() error { return answers(through.String()) }
		return preparePooler(s, u, mode)
	})
	if err != nil {
		t.Fatalf("testenv: start PgBouncer: %v", err)
	}
	p.cleanUp(t)
	u.Host = p.addr()
	return u.String()
}

const poolerConfig = `[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = %s
default_pool_size = %d
stats_users = %s
`

func preparePooler(s *own, database *url.URL, mode string) error {
	path, err := findInstalled(inSbin("pgbouncer"), "pgbouncer")
	if err != nil {
		return err
	}
	cred, err := ownedBy("postgres", s.dir)
	if err != nil {
		return err
	}
	size := 3
	if mode == "session" {
		size = 5 // a server of fencelock keeps five connections
	}
	users, config := filepath.Join(s.dir, "users.txt"), filepath.Join(s.dir, "pgbouncer.ini")
	for file, text := range map[string]string{
		users:  fmt.Sprintf("%q \"\"\n", database.User.Username()),
		config: fmt.Sprintf(poolerConfig, database.Hostname(), database.Port(), s.port, users, mode, size, database.User.Username()),
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	s.server = &process{
		path: path, args: []string{config}, dir: s.dir, cred: cred, stopSignal: syscall.SIGINT, reapSignal: syscall.SIGKILL,
	}
	return nil
}
