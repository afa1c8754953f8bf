package mysqlguardtest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/mysqlguard"
)

// storedRecord is what the version before wrote, each table's columns by their names.
func storedRecord() []string {
	return []string{
		`INSERT INTO fencing_marks (resource, mark, previous, claims, claimer, claimed_at) VALUES ('accounts/1', 34, 33, 2, 7, '2026-11-22 12:00:00')`,
		`INSERT INTO fencing_records (resource, value, version, attempts) VALUES ('accounts/1', '{"balance": 90}', 1, 3)`,
		`INSERT INTO fencing_attempts (resource, seq, token, compared, kind, version, at) VALUES
			('accounts/1', 1, 33, 0, 'claim', 0, '2026-11-22 11:00:00'),
			('accounts/1', 2, 34, 33, 'write', 1, '2026-11-22 12:00:00'),
			('accounts/1', 3, 33, 34, 'write', 1, '2026-11-22 12:00:01')`,
	}
}

// The tables are those of the version before, and its rows are read; also where a later
// version has added to the schema.
func TestStoredRecord(t *testing.T) {
	t.Parallel()
	for name, later := range map[string][]string{"the version before": nil, "a later version": {
		`ALTER TABLE fencing_marks ADD COLUMN later TEXT`,
		`ALTER TABLE fencing_records ADD COLUMN later VARCHAR(9) NOT NULL DEFAULT 'x'`,
		`ALTER TABLE fencing_attempts ADD COLUMN later TEXT`,
		`CREATE TABLE fencing_later (id INT)`,
		`INSERT INTO fencing_version (version, installed_at) SELECT MAX(version) + 1, NOW(6) FROM fencing_version`,
	}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			maria := testenv.MariaDB(t)
			if err := mysqlguard.Install(t.Context(), maria.OwnerURL()); err != nil {
				t.Fatal(err)
			}
			exec(t, maria.DB(), append(storedRecord(), later...)...)
			guard, err := mysqlguard.Open(maria.OwnerURL(), mysqlguard.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = guard.Close() }()
			useStoredRecord(t, guard)
			wantTables(t, maria.DB())
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
func wantTables(t *testing.T, db queryer) {
	t.Helper()
	var got []string
	for _, sql := range []string{
		`SELECT CONCAT_WS(' ', resource, mark, previous, claims) FROM fencing_marks`,
		`SELECT CONCAT_WS(' ', resource, value, version, attempts) FROM fencing_records`,
		`SELECT GROUP_CONCAT(CONCAT_WS(' ', resource, seq, token, compared, kind, version) ORDER BY seq SEPARATOR ', ') FROM fencing_attempts WHERE seq > 3`,
	} {
		var row string
		if err := db.QueryRowContext(t.Context(), sql).Scan(&row); err != nil {
			t.Fatal(err)
		}
		got = append(got, row)
	}
	want := []string{"accounts/1 35 34 3", `accounts/1 {"balance":  80} 2 5`, "accounts/1 4 33 34 write 1, accounts/1 5 35 34 write 2"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the tables hold\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
