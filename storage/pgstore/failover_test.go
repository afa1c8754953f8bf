package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
)

func mustPool(tb testing.TB, config *pgxpool.Config) *pgxpool.Pool {
	tb.Helper()
	pool, err := pgxpool.NewWithConfig(tb.Context(), config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return pool
}

func incarnationOf(tb testing.TB, s *Store) (status replica.Status) {
	tb.Helper()
	err := s.View(tb.Context(), func(tx replica.Tx) error {
		status = tx.Status()
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return status
}

func putRow(tb testing.TB, s *Store, key, value string) {
	tb.Helper()
	err := s.Update(tb.Context(), func(tx replica.Tx) error {
		tx.Put(key, []byte(value), 0)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

func getRow(tb testing.TB, s *Store, key string) (value string) {
	tb.Helper()
	err := s.View(tb.Context(), func(tx replica.Tx) error {
		raw, _ := tx.Get(key)
		value = string(raw)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return value
}

// cutOff stops the replication to a standby.
func cutOff(tb testing.TB, standby *testenv.PG) {
	tb.Helper()
	execSQL(tb, standby.URL(), `ALTER SYSTEM SET primary_conninfo = ''`, `SELECT pg_reload_conf()`)
	testenv.Eventually(tb, 20*time.Second, func() error {
		if n := query[int](tb, standby.URL(), `SELECT count(*) FROM pg_stat_wal_receiver`); n > 0 {
			return fmt.Errorf("%d receivers", n)
		}
		return nil
	})
}

func caughtUp(tb testing.TB, primary, standby *testenv.PG) {
	tb.Helper()
	lsn := query[string](tb, primary.URL(), `SELECT pg_current_wal_lsn()::text`)
	testenv.Eventually(tb, 20*time.Second, func() error {
		if !query[bool](tb, standby.URL(), `SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn`, lsn) {
			return errors.New("the standby is behind")
		}
		return nil
	})
}

// Crashes and restarts lose nothing that was committed, and keep the incarnation. A promotion and a restore change
// it, even if nothing was lost.
func TestIncarnations(t *testing.T) {
	t.Parallel()
	primary := testenv.StartPostgres(t)
	s := openStore(t, primary.OwnerURL(), Options{Timeout: 20 * time.Second})
	if !s.Young() {
		t.Error("a new server was promoted before")
	}
	before := incarnationOf(t, s)
	putRow(t, s, "a", "1")
	primary.Kill()
	primary.Restart()
	if now := incarnationOf(t, s); now != before || getRow(t, s, "a") != "1" {
		t.Errorf("after a crash: %+v, was %+v; row %q", now, before, getRow(t, s, "a"))
	}
	primary.Restart()
	if now := incarnationOf(t, s); now != before || getRow(t, s, "a") != "1" {
		t.Errorf("after a restart: %+v, was %+v", now, before)
	}

	backup := primary.Backup()
	standby := primary.Standby()
	caughtUp(t, primary, standby)
	if _, err := Open(t.Context(), standby.OwnerURL(), Options{}); err == nil || !strings.Contains(err.Error(), "target_session_attrs=primary") {
		t.Errorf("a standby is taken: %v", err)
	}
	cutOff(t, standby)
	putRow(t, s, "a", "2")

	seen := make(map[string]string)
	for name, pg := range map[string]*testenv.PG{"promoted": standby, "restored": backup.Restore()} {
		if name == "promoted" {
			promote(t, pg)
		}
		other := openStore(t, pg.OwnerURL(), Options{Timeout: 20 * time.Second})
		now := incarnationOf(t, other)
		if now.Incarnation == before.Incarnation || now.Unfit != "" || other.Young() {
			t.Errorf("%s: %+v, was %+v, young: %t", name, now, before, other.Young())
		}
		if row := getRow(t, other, "a"); row != "1" {
			t.Errorf("%s: row %q, want the one before the last commit", name, row)
		}
		seen[name] = now.Incarnation
	}
	if now := incarnationOf(t, s); now != before || getRow(t, s, "a") != "2" {
		t.Errorf("the old primary: %+v, was %+v", now, before)
	}
}

// promote promotes a standby while a connection asks for its state again and again. As soon as it may vote, it must
// have another incarnation.
func promote(t *testing.T, standby *testenv.PG) {
	t.Helper()
	s := &Store{opts: Options{}.withDefaults(), mirror: newMirror()}
	config, err := poolConfig(standby.OwnerURL(), s.opts)
	if err != nil {
		t.Fatal(err)
	}
	s.pool = mustPool(t, config)
	if status := incarnationOf(t, s); !strings.HasPrefix(status.Unfit, "it is a standby") || !strings.HasPrefix(status.Incarnation, "standby/") {
		t.Errorf("a standby says of itself %+v", status)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	promoted := make(chan struct{})
	go func() {
		defer close(promoted)
		execSQL(t, standby.URL(), `SELECT pg_promote()`)
	}()
	for ctx.Err() == nil {
		status := incarnationOf(t, s)
		if status.Unfit == "" {
			if strings.HasPrefix(status.Incarnation, "00000001/") {
				t.Errorf("the first state after the promotion is the earlier one: %+v", status)
			}
			break
		}
	}
	<-promoted
}
