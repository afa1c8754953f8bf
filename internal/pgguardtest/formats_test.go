package pgguardtest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

// storedRecord is what the version before wrote, each table's columns by their names.
const storedRecord = `
INSERT INTO fencing.marks (resource, mark, previous, xid, claimed_at) VALUES ('accounts/1', 34, 33, '700', '2026-11-22 12:00:00+00');
INSERT INTO fencing.records (resource, value, version, attempts) VALUES ('accounts/1', '{"balance": 90}', 1, 3);
INSERT INTO fencing.attempts (resource, seq, token, compared, kind, version, at) VALUES
    ('accounts/1', 1, 33, 0, 'claim', 0, '2026-11-22 11:00:00+00'),
    ('accounts/1', 2, 34, 33, 'write', 1, '2026-11-22 12:00:00+00'),
    ('accounts/1', 3, 33, 34, 'write', 1, '2026-11-22 12:00:01+00');`

// The tables are those of the version before, and its rows are read; also where a later
// version has added to the schema.
func TestStoredRecord(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{"the version before": "", "a later version": `
		ALTER TABLE fencing.marks ADD COLUMN later text;
		ALTER TABLE fencing.records ADD COLUMN later text NOT NULL DEFAULT 'x';
		ALTER TABLE fencing.attempts ADD COLUMN later text;
		CREATE TABLE fencing.later (id int);
		INSERT INTO fencing.version SELECT max(version) + 1 FROM fencing.version;`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Postgres(t).OwnerURL()
			if err := pgguard.Install(t.Context(), url); err != nil {
				t.Fatal(err)
			}
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close(t.Context()) }()
			if _, err := conn.Exec(t.Context(), storedRecord+sql); err != nil {
				t.Fatal(err)
			}
			guard, err := pgguard.Open(t.Context(), url, pgguard.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = guard.Close() }()
			useStoredRecord(t, guard)
			wantTables(t, conn)
		})
	}
}

func useStoredRecord(t *testing.T, guard fencing.Guard) {
	t.Helper()
	record, err := guard.Read(t.Context(), "accounts/1")
	if err != nil || record.Mark != 34 || record.Version != 1 || string(record.Value) != `{"balance": 90}` {
		t.Errorf("%+v, %v", record, err)
	}
	history, err := guard.History(t.Context(), "accounts/1", 10)
	if err != nil || len(history) != 3 || history[0].Token != 33 || history[0].Accepted || history[2].Kind != fencing.KindClaim {
		t.Errorf("%+v, %v", history, err)
	}
	if highest, err := guard.HighestMark(t.Context()); err != nil || highest != 34 {
		t.Errorf("the highest mark is %d, %v", highest, err)
	}
	if _, err := guard.Write(t.Context(), "accounts/1", 33, []byte(`1`)); !errors.Is(err, fencing.ErrStaleToken) {
		t.Errorf("a stale write: %v", err)
	}
	if _, err := guard.Write(t.Context(), "accounts/1", 35, []byte(`{"balance":  80}`)); err != nil {
		t.Error(err)
	}
}

// wantTables compares what this version writes with what the one before reads.
func wantTables(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	var got []string
	for _, sql := range []string{
		`SELECT concat_ws(' ', resource, mark, previous) FROM fencing.marks`,
		`SELECT concat_ws(' ', resource, value, version, attempts) FROM fencing.records`,
		`SELECT string_agg(concat_ws(' ', resource, seq, token, compared, kind, version), ', ' ORDER BY seq) FROM fencing.attempts WHERE seq > 3`,
	} {
		var row string
		if err := conn.QueryRow(t.Context(), sql).Scan(&row); err != nil {
			t.Fatal(err)
		}
		got = append(got, row)
	}
	want := []string{"accounts/1 35 34", `accounts/1 {"balance":  80} 2 5`, "accounts/1 4 33 34 write 1, accounts/1 5 35 34 write 2"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the tables hold\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
