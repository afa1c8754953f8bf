package testenv

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func execSQL(t *testing.T, url, sql string) {
	t.Helper()
	if _, err := connect(t, url).Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func query[T any](t *testing.T, url, sql string) T {
	t.Helper()
	var v T
	if err := connect(t, url).QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestPostgresGivesFreshDatabases(t *testing.T) {
	a, b := Postgres(t), Postgres(t)
	execSQL(t, a.URL(), "CREATE TABLE x (n int)")
	execSQL(t, b.URL(), "CREATE TABLE x (n int)")
	if a.URL() == b.URL() {
		t.Errorf("twice the same database: %s", a.URL())
	}
}

func TestPostgresDropsDatabasesInUse(t *testing.T) {
	var url string
	t.Run("first", func(t *testing.T) {
		pg := Postgres(t)
		url = pg.URL()
		if _, err := pgx.Connect(t.Context(), url); err != nil { // left open
			t.Fatal(err)
		}
	})
	if _, err := pgx.Connect(t.Context(), url); err == nil {
		t.Error("the database outlives its test")
	}
}

func TestPostgresOwnerHasNoOtherRights(t *testing.T) {
	pg := Postgres(t)
	execSQL(t, pg.OwnerURL(), "CREATE SCHEMA s; CREATE TABLE s.x (n int)")
	if query[string](t, pg.OwnerURL(), "SELECT current_setting('is_superuser')") != "off" {
		t.Error("the owner is a superuser")
	}
	if query[string](t, pg.URL(), "SELECT current_setting('is_superuser')") != "on" {
		t.Error("the other one is not")
	}
}

func TestPostgresSurvivesKill(t *testing.T) {
	t.Parallel()
	pg := StartPostgres(t)
	if query[string](t, pg.URL(), "SHOW fsync") != "on" {
		t.Error("a server to be killed must sync")
	}
	url := pg.URL()
	execSQL(t, url, "CREATE TABLE x (n int); INSERT INTO x VALUES (1)")
	pg.Kill()
	if err := answers(pg.admin); err == nil {
		t.Error("a killed server answers")
	}
	pg.Restart()
	execSQL(t, url, "INSERT INTO x VALUES (2)")
	pg.Restart()
	if n := query[int](t, url, "SELECT count(*) FROM x"); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}

func TestPostgresFreezeStopsOpenConnections(t *testing.T) {
	t.Parallel()
	pg := StartPostgres(t)
	conn := connect(t, pg.URL())
	pg.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(ctx, "SELECT 1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a frozen server answers: %v", err)
	}
	pg.Thaw()
	if n := query[int](t, pg.URL(), "SELECT 1"); n != 1 {
		t.Error(n)
	}
	pg.Freeze() // and the clean-up has to cope with that
}
