package pgstore

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/storetest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// fast are options for tests on the shared server, which does not sync. Their time limits suit a busy machine, also
// inside a transaction.
func fast() Options {
	return Options{Timeout: time.Minute, Idle: time.Minute, unsafe: true, sweep: sweeping{page: 3, pause: time.Millisecond, rest: time.Millisecond}}
}

func openStore(tb testing.TB, url string, opts Options) *Store {
	tb.Helper()
	s, err := Open(tb.Context(), url, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

func execSQL(tb testing.TB, url string, statements ...string) {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(tb.Context())) }()
	for _, statement := range statements {
		if _, err := conn.Exec(tb.Context(), statement); err != nil {
			tb.Fatalf("%s: %v", statement, err)
		}
	}
}

func query[T any](tb testing.TB, url, sql string, args ...any) (value T) {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(tb.Context())) }()
	return queryOn[T](tb, conn, sql, args...)
}

func queryOn[T any](tb testing.TB, conn *pgx.Conn, sql string, args ...any) (value T) {
	tb.Helper()
	if err := conn.QueryRow(tb.Context(), sql, args...).Scan(&value); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return value
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		t.Helper()
		url := testenv.Postgres(t).OwnerURL()
		s := openStore(t, url, fast())
		return storetest.Harness{
			Store:  s,
			Beside: func() replica.Store { return openStore(t, url, fast()) },
			Noise:  func(topic string) { execSQL(t, url, `SELECT pg_notify('`+channelOf(topic)+`', 'not one of ours')`) },
			Reopen: func() replica.Store {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				s = openStore(t, url, fast())
				return s
			},
			// As a restore of the schema from a dump does.
			Lose: func() {
				execSQL(t, url, `DROP SCHEMA fencelock CASCADE`)
				if err := install(t.Context(), s.pool); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}
