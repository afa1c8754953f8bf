package nodetest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/replica"
)

// Rows tests the rows of a replica over stores of one kind. The rows must be identical to the folder's
// fixtures, byte for byte, and the fixtures must be readable. If update is true, Rows first writes the
// fixtures. open returns an empty store.
func Rows(t *testing.T, folder string, update bool, open func(t *testing.T) replica.Store) {
	t.Helper()
	written := open(t)
	for _, state := range States() {
		t.Run(state.Name, func(t *testing.T) {
			path := filepath.Join(folder, state.Name+".txt")
			state.Write(t, openReplica(t, written))
			rows := FormatRows(rowsOf(t, written))
			if update {
				if err := os.WriteFile(path, []byte(rows), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			stored, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			WantFormat(t, rows, string(stored))
			loaded := open(t)
			loadRows(t, loaded, string(stored), "")
			state.Read(t, openReplica(t, loaded))
		})
	}
}

// LaterRows tests that fields that a later version may add are ignored and kept.
func LaterRows(t *testing.T, folder string, open func(t *testing.T) replica.Store) {
	t.Helper()
	const later = "more fields"
	stored, err := os.ReadFile(filepath.Join(folder, "admitted.txt"))
	if err != nil {
		t.Fatal(err)
	}
	s := open(t)
	loadRows(t, s, string(stored), later)
	States()[1].Read(t, openReplica(t, s))
	rows, _ := rowsOf(t, s)
	for _, row := range rows {
		if row.Key == recordKey && !strings.HasSuffix(string(row.Value), later) {
			t.Errorf("the record lost what a later version added: %q", row.Value)
		}
	}
}

// WantFormat compares what this version writes with a stored fixture.
func WantFormat(t *testing.T, got, stored string) {
	t.Helper()
	if got != stored {
		t.Errorf("This version writes another format than the one before, which serves the same nodes during an upgrade: "+
			"keep both for one version, or raise the format number (docs/internals/formats.md).\n got\n%s\nstored\n%s", got, stored)
	}
}

func openReplica(t *testing.T, s replica.Store) *replica.Node {
	t.Helper()
	n, err := replica.New(t.Context(), "stored", s, replica.Options{Rules: replica.Rules{CounterTTL: counters}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// The record contains the store's incarnation; a fixture does not.
const (
	recordKey   = "s"
	incarnation = "<incarnation>"
)

// FormatRows formats rows as the text of a fixture: key, remaining time, value.
func FormatRows(rows []replica.Row, own string) string {
	var text strings.Builder
	for _, row := range rows {
		value := string(row.Value)
		if row.Key == recordKey {
			value = renamed(value, own, incarnation)
		}
		fmt.Fprintf(&text, "%+q %s %+q\n", row.Key, LeftOf(row.Left), value)
	}
	return text.String()
}

// ParseRows reads a fixture's text, for a store of this incarnation.
func ParseRows(t *testing.T, text, own string) (rows []replica.Row) {
	t.Helper()
	for line := range strings.Lines(text) {
		var key, left, value string
		_, err := fmt.Sscanf(line, "%q %s %q", &key, &left, &value)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if key == recordKey {
			value = renamed(value, incarnation, own)
		}
		ttl, err := time.ParseDuration(left)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		rows = append(rows, replica.Row{Key: key, Value: []byte(value), Left: ttl})
	}
	return rows
}

// renamed replaces the incarnation in a record, and its length prefix.
func renamed(record, was, with string) string {
	sized := func(text string) string { return string(binary.AppendVarint(nil, int64(len(text)))) + text }
	return strings.Replace(record, sized(was), sized(with), 1)
}

func rowsOf(t *testing.T, s replica.Store) (rows []replica.Row, own string) {
	t.Helper()
	err := s.View(t.Context(), func(tx replica.Tx) error {
		rows, own = nil, tx.Status().Incarnation
		for _, row := range tx.Range("\x01", "\xff", 1000) {
			rows = append(rows, replica.Row{Key: row.Key, Value: bytes.Clone(row.Value), Left: row.Left})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows, own
}

func loadRows(t *testing.T, s replica.Store, stored, later string) {
	t.Helper()
	err := s.Update(t.Context(), func(tx replica.Tx) error {
		for _, row := range ParseRows(t, stored, tx.Status().Incarnation) {
			if row.Key == recordKey {
				row.Value = append(row.Value, later...)
			}
			tx.Put(row.Key, row.Value, row.Left)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
