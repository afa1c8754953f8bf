package mysqlguardtest_test

import (
	"testing"
)

// withoutToken are transactions that claim nothing. The table order_lines has rows 1 and 2 of the
// resource orders/1, which nobody has claimed yet, and 3 of orders/2.
var withoutToken = []struct {
	name       string
	passes     bool // in the mode inserts, where the mark that an insert makes counts as a claim
	statements []string
}{
	{"one row", true, []string{newLine}},
	{"rows of one statement", true, []string{`INSERT INTO order_lines VALUES (1, 8, ''), (1, 9, ''), (5, 10, '')`}},
	{"row after row", true, []string{newLine, `INSERT INTO order_lines VALUES (1, 10, '')`}},
	{"selected", true, []string{`INSERT INTO order_lines SELECT 1, 20 + id, '' FROM order_lines`}},
	{"replaced, new", true, []string{`REPLACE INTO order_lines VALUES (1, 9, '')`}},
	{"insert, update of another row", true, []string{newLine, updateLine}},
	{"insert, delete", true, []string{newLine, `DELETE FROM order_lines WHERE id = 1`}},
	{"insert, then an existing row", true, []string{`INSERT INTO order_lines VALUES (1, 9, ''), (1, 1, '') ON DUPLICATE KEY UPDATE note = 'x'`}},

	{"an update", false, []string{updateLine}},
	{"a delete", false, []string{`DELETE FROM order_lines WHERE id = 1`}},
	{"an existing row first", false, []string{`INSERT INTO order_lines VALUES (1, 1, ''), (1, 9, '') ON DUPLICATE KEY UPDATE note = 'x'`}},
	{"replaced, existing", false, []string{`REPLACE INTO order_lines VALUES (1, 1, '')`}},
	{"insert, a row that moves out", false, []string{newLine, `UPDATE order_lines SET order_id = 7 WHERE id = 1`}},
	{"insert, a row of another resource", false, []string{newLine, `UPDATE order_lines SET note = 'x' WHERE id = 3`}},
	{"insert, undone, update", false, []string{`SAVEPOINT s`, newLine, `ROLLBACK TO s`, updateLine}},
	{"insert of the transaction before", false, []string{newLine, `COMMIT`, `SET @fencing_claimer = NULL`, `BEGIN`, updateLine}},
}

const (
	newLine    = `INSERT INTO order_lines VALUES (1, 9, 'new')`
	updateLine = `UPDATE order_lines SET note = 'x' WHERE id = 1`
)

// TestWritesWithoutAToken: what each mode lets through.
func TestWritesWithoutAToken(t *testing.T) {
	t.Parallel()
	_, db := guarded(t, "strict")
	for _, mode := range []string{"strict", "inserts", "migrating"} {
		for _, form := range withoutToken {
			exec(t, db, `DROP TABLE IF EXISTS order_lines`, `CREATE TABLE order_lines (order_id INT, id INT PRIMARY KEY, note VARCHAR(9))`,
				`INSERT INTO order_lines VALUES (1, 1, ''), (1, 2, ''), (2, 3, '')`, `DELETE FROM fencing_marks`)
			protect(t, db, "order_lines", `CONCAT('orders/', order_id)`, mode)
			conn := session(t, db)
			exec(t, conn, `SET @fencing_claimer = NULL`, `BEGIN`)
			last := len(form.statements) - 1
			switch {
			case mode == "migrating" || mode == "inserts" && form.passes:
				exec(t, conn, form.statements...)
			case mode == "inserts":
				exec(t, conn, form.statements[:last]...)
				refused(t, conn, missing, form.statements[last])
			case form.statements[0] != `SAVEPOINT s`:
				refused(t, conn, missing, form.statements[0])
			}
			exec(t, conn, `ROLLBACK`)
			_ = conn.Close()
		}
	}
}
