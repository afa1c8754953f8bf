package pgguardtest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

const (
	passes   = iota
	unproven // passes where no proof is demanded
	nowhere
)

// withoutToken are transactions that present nothing. The table lines has rows 1 and 2 of
// the resource orders/1, which nobody has claimed yet, and 3 of orders/2.
var withoutToken = []struct {
	name       string
	passes     int // in the mode inserts
	statements []string
}{
	{"one row", passes, []string{newLine}},
	{"rows of one statement", passes, []string{`INSERT INTO lines (order_id, id) VALUES (1, 8), (1, 9), (5, 10)`}},
	{"row after row", passes, []string{newLine, `INSERT INTO lines (order_id, id) VALUES (1, 10)`}},
	{"after a savepoint", passes, []string{newLine, `SAVEPOINT s`, `INSERT INTO lines (order_id, id) VALUES (1, 10)`}},
	{"copied", passes, []string{newLine, `INSERT INTO lines SELECT 1, 20 + id, note FROM lines WHERE order_id = 1`}},
	{"merge, insert", passes, []string{mergeLines + `WHEN NOT MATCHED THEN INSERT VALUES (1, v.id, 'new')`}},
	{"on conflict, nothing", passes, []string{`INSERT INTO lines (order_id, id) VALUES (1, 1), (1, 9) ON CONFLICT DO NOTHING`}},

	{"an update", nowhere, []string{updateLine}},
	{"a delete", nowhere, []string{deleteLine}},
	{"insert, update of another row", unproven, []string{newLine, updateLine}},
	{"insert, update of its row", unproven, []string{newLine, `UPDATE lines SET note = 'x' WHERE id = 9`}},
	{"insert, delete", unproven, []string{newLine, deleteLine}},
	{"insert, delete of its row", unproven, []string{newLine, `DELETE FROM lines WHERE id = 9`}},
	{"insert, truncate", unproven, []string{newLine, `INSERT INTO lines (order_id, id) VALUES (2, 10)`, `TRUNCATE lines`}},
	{"insert, a row that moves in", unproven, []string{newLine, `INSERT INTO lines (order_id, id) VALUES (2, 10)`, `UPDATE lines SET order_id = 1 WHERE id = 3`}},
	{"insert, a row that moves out", nowhere, []string{newLine, `UPDATE lines SET order_id = 7 WHERE id = 1`}},
	{"insert, savepoint, update", unproven, []string{newLine, `SAVEPOINT s`, updateLine}},
	{"two inserts, update", unproven, []string{newLine, `INSERT INTO lines (order_id, id) VALUES (1, 10)`, updateLine}},
	{"insert and update in one statement", nowhere, []string{`WITH w AS (` + newLine + `) ` + updateLine}},
	{"merge, insert and update", unproven, []string{mergeLines + `WHEN MATCHED THEN UPDATE SET note = 'x' WHEN NOT MATCHED THEN INSERT VALUES (1, v.id, 'new')`}},
	{"merge, insert and delete", unproven, []string{mergeLines + `WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (1, v.id, 'new')`}},
	{"on conflict, update", unproven, []string{`INSERT INTO lines (order_id, id) VALUES (1, 9), (1, 1) ON CONFLICT (id) DO UPDATE SET note = 'x'`}},
	{"insert, a claim that is undone, update", unproven, []string{newLine, `SAVEPOINT s`, `SELECT fencing.claim('orders/2', 1)`, `ROLLBACK TO s`, updateLine}},
}

const (
	newLine    = `INSERT INTO lines (order_id, id) VALUES (1, 9)`
	updateLine = `UPDATE lines SET note = 'x' WHERE id = 1`
	deleteLine = `DELETE FROM lines WHERE id = 1`
	mergeLines = `MERGE INTO lines USING (VALUES (9), (1)) AS v (id) ON lines.id = v.id AND v.id < 9 WHEN MATCHED AND v.id = 0 THEN DO NOTHING `
)

// TestWritesWithoutAToken: what each mode lets through, with proofs and without. In the mode
// inserts the mark that an insert makes counts as a claim, which anybody may make where no
// proof is demanded. Where one is, it lets nothing through but more inserts.
func TestWritesWithoutAToken(t *testing.T) {
	writesWithoutAToken(newTheatre(t), []string{"inserts"}, "")
}

func TestWritesWithoutATokenInOtherModes(t *testing.T) {
	testenv.Long(t, "a form of write that another mode, or a partitioned table, lets through")
	th := newTheatre(t)
	writesWithoutAToken(th, []string{"strict", "migrating"}, "")
	writesWithoutAToken(th, []string{"strict", "inserts", "migrating"}, "PARTITION BY RANGE (id)")
}

func writesWithoutAToken(th *theatre, modes []string, partitions string) {
	th.t.Helper()
	if err := pgguard.SetProofKeys(th.t.Context(), th.url, proofKeys(th.t, keyOne)); err != nil {
		th.t.Fatal(err)
	}
	for _, mode := range modes {
		for _, proof := range []string{"false", "true"} {
			th.t.Run(mode+"/proof="+proof+"/"+partitions, func(t *testing.T) {
				s := th.newStage(t, false, pgx.ReadCommitted)
				for _, form := range withoutToken {
					s.lines(mode, proof, partitions)
					want := ""
					if mode == "strict" || mode == "inserts" && (form.passes == nowhere || form.passes == unproven && proof == "true") {
						want = pgguard.SQLStateMissing
					}
					if err := tried(t, s.admn, form.statements...); sqlState(err) != want || (want == "") != (err == nil) {
						t.Errorf("%s: %v, want %q", form.name, err, want)
					}
				}
			})
		}
	}
}

// lines makes the table of withoutToken again, and forgets all marks.
func (s *stage) lines(mode, proof, partitions string) {
	s.t.Helper()
	s.exec(`TRUNCATE fencing.marks, fencing.proven`)
	s.exec(`DROP TABLE IF EXISTS lines`)
	s.exec(`CREATE TABLE lines (order_id int NOT NULL, id int PRIMARY KEY, note text) ` + partitions)
	if partitions != "" {
		s.exec(`CREATE TABLE old_lines PARTITION OF lines FOR VALUES FROM (0) TO (9)`)
		s.exec(`CREATE TABLE new_lines PARTITION OF lines DEFAULT`)
	}
	s.exec(`INSERT INTO lines VALUES (1, 1), (1, 2), (2, 3)`)
	s.exec(`SELECT fencing.protect('lines', $$'orders/' || order_id$$, mode => '` + mode + `', proof => ` + proof + `)`)
}

// TestCopyWithoutAToken is TestWritesWithoutAToken for COPY.
func TestCopyWithoutAToken(t *testing.T) {
	th := newTheatre(t)
	if err := pgguard.SetProofKeys(t.Context(), th.url, proofKeys(t, keyOne)); err != nil {
		t.Fatal(err)
	}
	s := th.newStage(t, false, pgx.ReadCommitted)
	s.lines("inserts", "true", "")
	tx := s.begin()
	if _, err := tx.CopyFrom(t.Context(), pgx.Identifier{"lines"}, []string{"order_id", "id"}, pgx.CopyFromRows([][]any{{1, 8}, {1, 9}, {5, 10}})); err != nil {
		t.Fatal(err)
	}
	if got := s.fails(tx, updateLine); got != pgguard.SQLStateMissing {
		t.Errorf("an update after it gives %q", got)
	}
}

// TestAClaimAfterAnInsert: a holder's proof lets its transaction do everything, also after an
// insert that needed none, and a later transaction inserts nothing more.
func TestAClaimAfterAnInsert(t *testing.T) {
	th := newTheatre(t)
	keys := proofKeys(t, keyOne)
	if err := pgguard.SetProofKeys(t.Context(), th.url, keys); err != nil {
		t.Fatal(err)
	}
	s := th.newStage(t, false, pgx.ReadCommitted)
	s.lines("inserts", "true", "")
	claim := claimWith("orders/1", 34, keys.Prove("orders/1", 34))
	if err := tried(t, s.admn, newLine, claim, updateLine, deleteLine, `INSERT INTO lines (order_id, id) VALUES (1, 10)`); err != nil {
		t.Error(err)
	}
	for _, sql := range []string{`INSERT INTO lines (order_id, id) VALUES (1, 11)`, deleteLine + ` OR id = 2`} {
		if got := s.fails(s.admn, sql); got != pgguard.SQLStateMissing {
			t.Errorf("later, %s gives %q", sql, got)
		}
	}
	s.lines("inserts", "true", "")
	s.exec(newLine)
	if got := s.fails(s.admn, `INSERT INTO lines (order_id, id) VALUES (1, 10)`); got != pgguard.SQLStateMissing {
		t.Errorf("an insert after another transaction's gives %q", got)
	}
	if err := tried(t, s.admn, claimWith("orders/1", 1, keys.Prove("orders/1", 1)), updateLine); err != nil {
		t.Errorf("the smallest token after an insert: %v", err)
	}
}
