package pgstore

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// The table has the format of the previous version, and that version's rows are read.
func TestStoredTable(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t).OwnerURL()
	written := openStore(t, url, patient())
	for _, state := range nodetest.States() {
		t.Run(state.Name, func(t *testing.T) {
			stored, err := os.ReadFile(filepath.Join("..", "..", "lockcore", "replica", "testdata", "rows", state.Name+".txt"))
			if err != nil {
				t.Fatal(err)
			}
			state.Write(t, nodetest.Over(t, written, replica.Options{Rules: replica.Rules{CounterTTL: time.Hour}}))
			nodetest.WantFormat(t, nodetest.FormatRows(readTable(t, url), incarnationOf(t, written).Incarnation), string(stored))

			other := testenv.Postgres(t).OwnerURL()
			loaded := openStore(t, other, patient())
			fillTable(t, other, nodetest.ParseRows(t, string(stored), incarnationOf(t, loaded).Incarnation))
			state.Read(t, nodetest.Over(t, loaded, replica.Options{Rules: replica.Rules{CounterTTL: time.Hour}}))
		})
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

func readTable(t *testing.T, url string) (rows []replica.Row) {
	t.Helper()
	found, err := connect(t, url).Query(t.Context(),
		`SELECT key, value, CASE ends WHEN 9223372036854775807 THEN 0 ELSE ends - extract(epoch FROM clock_timestamp()) * 1e6 END::bigint FROM fencelock.rows ORDER BY key`)
	if err != nil {
		t.Fatal(err)
	}
	for found.Next() {
		var key, value []byte
		var left int64
		if err := found.Scan(&key, &value, &left); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, replica.Row{Key: string(key), Value: value, Left: time.Duration(left) * time.Microsecond})
	}
	if found.Err() != nil {
		t.Fatal(found.Err())
	}
	return rows
}

// fillTable writes what the previous version wrote, without using this version's code.
func fillTable(t *testing.T, url string, rows []replica.Row) {
	t.Helper()
	conn := connect(t, url)
	for _, row := range rows {
		ends := int64(math.MaxInt64)
		if row.Left > 0 {
			ends = time.Now().Add(row.Left).UnixMicro()
		}
		if _, err := conn.Exec(t.Context(), `INSERT INTO fencelock.rows (key, value, ends) VALUES ($1, $2, $3)`, []byte(row.Key), row.Value, ends); err != nil {
			t.Fatal(err)
		}
	}
}
