package testenv

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// EnvMariaDBURL names the environment variable with the URL of a MariaDB server on which
// tests may make databases and users: mysql://root:password@host:3306.
const EnvMariaDBURL = "FENCELOCK_TEST_MARIADB_URL"

// Maria is a MariaDB database that belongs to one test.
type Maria struct {
	control
	database string
	admin    *url.URL // the server's superuser
	owner    *url.Userinfo
}

// sharedMaria is the server on which single tests of this process have a database each. It ends with the
// process.
var sharedMaria = sync.OnceValues(func() (*own, error) {
	return launchMaria([]string{"--innodb-flush-method=nosync"})
})

// MariaDB makes a new database on a server that the tests of this process share. The database ends with that
// server. The server does not sync to disk; for tests that kill it, see [StartMariaDB].
func MariaDB(t testing.TB) *Maria {
	t.Helper()
	NeedsServer(t)
	if external := os.Getenv(EnvMariaDBURL); external != "" {
		admin, err := url.Parse(external)
		if err != nil {
			t.Fatalf("testenv: %s: %v", EnvMariaDBURL, err)
		}
		m := newMariaDatabase(t, admin, nil)
		t.Cleanup(m.drop)
		return m
	}
	srv, err := sharedMaria()
	if err != nil {
		t.Fatalf("testenv: start MariaDB: %v", err)
	}
	return newMariaDatabase(t, mariaAdmin(srv), nil)
}

// StartMariaDB starts a server for this test alone, with a new database. The server syncs to disk, and can be
// killed, restarted and frozen. Settings are added to its command line.
func StartMariaDB(t testing.TB, settings ...string) *Maria {
	t.Helper()
	NeedsServer(t)
	if os.Getenv(EnvMariaDBURL) != "" {
		t.Fatalf("testenv: this test needs a MariaDB of its own; unset %s", EnvMariaDBURL)
	}
	srv, err := launchMaria(settings)
	if err != nil {
		t.Fatalf("testenv: start MariaDB: %v", err)
	}
	srv.cleanUp(t)
	return newMariaDatabase(t, mariaAdmin(srv), srv)
}

// newMariaDatabase makes a database, and a user with all rights in it and none outside.
func newMariaDatabase(t testing.TB, admin *url.URL, srv *own) *Maria {
	t.Helper()
	id := strings.ToLower(rand.Text()[:10])
	m := &Maria{
		control:  control{t: t, name: "MariaDB", shared: "other tests use this server too; use StartMariaDB"},
		database: "test_" + id, admin: admin, owner: url.UserPassword("owner_"+id, id),
	}
	err := mariaExec(admin,
		fmt.Sprintf("CREATE DATABASE %s CHARACTER SET utf8mb4", m.database),
		fmt.Sprintf("CREATE USER owner_%s IDENTIFIED BY '%s'", id, id),
		fmt.Sprintf("GRANT ALL ON %s.* TO owner_%s", m.database, id))
	if err != nil {
		t.Fatalf("testenv: make a database: %v", err)
	}
	if srv != nil {
		m.srv, m.await = srv, srv.awaitReady
	}
	return m
}

// drop removes the database and its owner from a server that this process did not start. (The folder of an
// own server is removed with everything in it.) MariaDB reports that the directory is not empty (1010) while
// it still deletes the files of the tables. It may report that for ever if its files and its list of tables
// differ.
func (m *Maria) drop() {
	Eventually(m.t, readyWithin, func() error {
		return mariaExec(m.admin, "DROP DATABASE IF EXISTS "+m.database, "DROP USER IF EXISTS "+m.owner.Username())
	})
}

// OwnerURL returns the database's mysql:// URL for the user that has all rights in it and no others.
func (m *Maria) OwnerURL() string { return m.url(m.owner) }

func (m *Maria) url(user *url.Userinfo) string {
	u := *m.admin
	u.Path, u.User = "/"+m.database, user
	return u.String()
}

// Open returns a pool of connections for the superuser or the owner. The pool is closed at the end of the
// test.
func (m *Maria) Open(user *url.Userinfo) *sql.DB {
	m.t.Helper()
	db, err := openMaria(m.url(user))
	if err != nil {
		m.t.Fatalf("testenv: MariaDB: %v", err)
	}
	m.t.Cleanup(func() { _ = db.Close() })
	return db
}

// DB returns a pool of connections of the owner.
func (m *Maria) DB() *sql.DB { return m.Open(m.owner) }

// Admin returns a pool of connections of the superuser.
func (m *Maria) Admin() *sql.DB { return m.Open(m.admin.User) }

func openMaria(text string) (*sql.DB, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	config := mysql.NewConfig()
	config.Net, config.Addr, config.DBName = "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	config.User = u.User.Username()
	config.Passwd, _ = u.User.Password()
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// mariaExec runs statements one by one.
func mariaExec(server *url.URL, statements ...string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	db, err := openMaria(server.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for _, s := range statements {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// Environment returns the environment of an operator whose mariadb client logs in as the owner: DATABASE, and
// the folder home as HOME, with the client's configuration.
func (m *Maria) Environment(home string) []string {
	m.t.Helper()
	password, _ := m.owner.Password()
	options := fmt.Sprintf("[client]\nprotocol=tcp\nhost=%s\nport=%s\nuser=%s\npassword=%s\n", m.admin.Hostname(), m.admin.Port(), m.owner.Username(), password)
	if err := os.WriteFile(filepath.Join(home, ".my.cnf"), []byte(options), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return []string{"HOME=" + home, "DATABASE=" + m.database}
}

// ClientArgs returns arguments with which the mariadb client connects to the database as its owner.
func (m *Maria) ClientArgs() []string {
	password, _ := m.owner.Password()
	return []string{"--protocol=tcp", "--host=" + m.admin.Hostname(), "--port=" + m.admin.Port(), "--user=" + m.owner.Username(), "--password=" + password, m.database}
}
