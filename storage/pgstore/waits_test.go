package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
)

func nothing(replica.Tx) error { return nil }

func put(tx replica.Tx) error {
	tx.Put("a", []byte("1"), 0)
	return nil
}

// If another session's lock keeps a transaction waiting, the error names that session.
func TestALockInTheWayIsNamed(t *testing.T) {
	testenv.Long(t, "a lock of another in Postgres that is waited for without a word")
	t.Parallel()
	pg := testenv.Postgres(t)
	opts := fast()
	opts.Timeout = 12 * time.Second // half of it is for finding out what is in the way
	s := openStore(t, pg.OwnerURL(), opts)
	culprit, err := pgx.Connect(t.Context(), pg.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = culprit.Close(context.WithoutCancel(t.Context())) }()
	for _, statement := range []string{`SET application_name = 'culprit'`, `BEGIN`, `LOCK TABLE fencelock.turn IN ACCESS EXCLUSIVE MODE`} {
		if _, err := culprit.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	err = s.Update(t.Context(), put)
	if err == nil {
		t.Fatal("it wrote past a lock")
	}
	pid := culprit.PgConn().PID()
	for _, part := range []string{fmt.Sprintf("process %d", pid), `program "culprit"`, fmt.Sprintf("pg_terminate_backend(%d)", pid), "deadline exceeded"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not said: %v", part, err)
		}
	}
	if _, err := culprit.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, func() error { return s.Update(t.Context(), put) })
}

// A store whose schema was deleted says so. If that lasts, the store makes another schema, of another incarnation, so
// that it counts as a loss. If only a part of the schema is missing, the store does not repair it.
func TestASchemaThatIsDeleted(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	opts := fast()
	opts.reinstall = time.Second
	s := openStore(t, pg.OwnerURL(), opts)
	if err := s.Update(t.Context(), put); err != nil {
		t.Fatal(err)
	}
	before := s.mirror.lastIncarnation()
	execSQL(t, pg.URL(), `DROP SCHEMA fencelock CASCADE`)
	if err := s.View(t.Context(), nothing); !errors.Is(err, errGone) {
		t.Fatalf("of a schema that is gone: %v", err)
	}
	if err := s.Update(t.Context(), put); !errors.Is(err, errGone) {
		t.Fatalf("of a schema that is gone: %v", err)
	}
	var after string
	var row []byte
	testenv.Eventually(t, time.Minute, func() error {
		return s.View(t.Context(), func(tx replica.Tx) error {
			after = tx.Status().Incarnation
			row, _ = tx.Get("a")
			return nil
		})
	})
	if after == before || row != nil {
		t.Errorf("the incarnation is %s, was %s, with the row %q", after, before, row)
	}
	if err := s.Update(t.Context(), put); err != nil {
		t.Errorf("in the new schema: %v", err)
	}

	execSQL(t, pg.URL(), `DROP TABLE fencelock.rows`)
	for began := time.Now(); time.Since(began) < 2*opts.reinstall; {
		if err := s.Update(t.Context(), put); !errors.Is(err, errGone) {
			t.Fatalf("of a schema without its table: %v", err)
		}
		<-time.After(opts.reinstall / 50)
	}
}
