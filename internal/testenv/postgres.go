package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// EnvDatabaseURL names the environment variable with the URL of a superuser on a PostgreSQL server on which
// tests may make databases and roles.
const EnvDatabaseURL = "FENCELOCK_TEST_DATABASE_URL"

// PG is a PostgreSQL database that belongs to one test.
type PG struct {
	control
	database string
	admin    string // the server's superuser, in database postgres
	owner    *url.Userinfo
}

// sharedServer is the server on which single tests of this process have a database each. It ends with the
// process.
var sharedServer = sync.OnceValues(func() (*own, error) { return launchPostgres(fastAndLoose(), nil) })

// Postgres makes a new database on a server that the tests of this process share. The server does not sync to
// disk; for tests that kill it, see [StartPostgres].
func Postgres(t testing.TB) *PG {
	t.Helper()
	NeedsServer(t)
	admin := os.Getenv(EnvDatabaseURL)
	if admin == "" {
		srv, err := sharedServer()
		if err != nil {
			t.Fatalf("testenv: start PostgreSQL: %v", err)
		}
		admin = pgAdmin(srv)
	}
	return newDatabase(t, admin, nil)
}

// StartPostgres starts a server for this test alone, with a new database. The server syncs to disk, and can
// be killed, restarted and frozen. Env, as name=value, is added to its environment.
func StartPostgres(t testing.TB, env ...string) *PG {
	t.Helper()
	NeedsServer(t)
	if os.Getenv(EnvDatabaseURL) != "" {
		t.Fatalf("testenv: this test kills its PostgreSQL; unset %s", EnvDatabaseURL)
	}
	srv, err := launchPostgres(nil, env)
	if err != nil {
		t.Fatalf("testenv: start PostgreSQL: %v", err)
	}
	srv.cleanUp(t)
	return newDatabase(t, pgAdmin(srv), srv)
}

// newDatabase makes a database and a role that owns it.
func newDatabase(t testing.TB, admin string, srv *own) *PG {
	t.Helper()
	id := strings.ToLower(rand.Text()[:10])
	pg := &PG{
		control:  control{t: t, name: "PostgreSQL", shared: "other tests use this server too; use StartPostgres"},
		database: "test_" + id, admin: admin, owner: url.UserPassword("owner_"+id, id),
	}
	err := pg.adminExec(
		fmt.Sprintf("CREATE ROLE owner_%s LOGIN NOSUPERUSER PASSWORD '%s'", id, id),
		fmt.Sprintf("CREATE DATABASE %s OWNER owner_%s", pg.database, id))
	if err != nil {
		t.Fatalf("testenv: make a database: %v", err)
	}
	if srv == nil {
		t.Cleanup(pg.drop)
	} else {
		pg.srv, pg.await = srv, srv.awaitReady
	}
	return pg
}

// drop removes the database and its owner from a server that continues to run.
func (pg *PG) drop() {
	err := pg.adminExec(
		fmt.Sprintf("DROP DATABASE IF EXISTS %s WITH (FORCE)", pg.database),
		"DROP ROLE IF EXISTS "+pg.owner.Username())
	if err != nil {
		pg.t.Errorf("testenv: drop database %s: %v", pg.database, err)
	}
}

// adminExec runs statements one by one as the superuser.
func (pg *PG) adminExec(statements ...string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	conn, err := pgx.Connect(ctx, pg.admin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// URL returns the database's URL for a superuser.
func (pg *PG) URL() string { return pg.url(nil) }

// OwnerURL returns the database's URL for the role that owns it and has no other right, like the role of a
// service in production.
func (pg *PG) OwnerURL() string { return pg.url(pg.owner) }

func (pg *PG) url(user *url.Userinfo) string {
	u, err := url.Parse(pg.admin)
	if err != nil {
		pg.t.Fatalf("testenv: %s: %v", EnvDatabaseURL, err)
	}
	u.Path = "/" + pg.database
	if user != nil {
		u.User = user
	}
	return u.String()
}

// answers returns nil if the server accepts connections.
func answers(adminURL string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, adminURL)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}
