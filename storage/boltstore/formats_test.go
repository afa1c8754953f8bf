package boltstore

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/boltfile"
)

// The rows have the format that every replica writes.
func TestStoredRows(t *testing.T) {
	nodetest.Rows(t, "../../lockcore/replica/testdata/rows", false, func(t *testing.T) replica.Store {
		t.Helper()
		return openFile(t, filepath.Join(t.TempDir(), "node.db"), Options{}).Store
	})
}

// What surrounds a row in the file is as the previous version wrote it. (cmd/fencelock tests that a file of the
// previous version is read.)
func TestStoredFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.db")
	fileOf(t, path, "LIFE")
	clock := newTestClock()
	f := openFile(t, path, Options{clock: clock.clock()})
	clock.advance(time.Second)
	err := f.Update(t.Context(), func(tx replica.Tx) error {
		tx.Put("good", []byte("value"), 0)
		tx.Put("ends", []byte{}, time.Minute)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	const stored = `node_file "incarnation" "LIFE&7b{"
node_file "opened" "\x00\x00\x00\x00\x00\x00\x00\x01\xf3+\xc2\xf8"
node_rows "ends" "\x00\x00\x00\x00\x00\x00\xea` + "`" + `\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x0e3\xe2\"\x00\x00\x00\x01\xa3\x18]>H\x9a\v\xbd\x82"
node_rows "good" "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00;\x9a\xca\x00\x00\x00\x01\xa3\x18\\S\xe8valueF\xa5\x1e2"
`
	nodetest.WantFormat(t, buckets(t, f.db), stored)
}

// fileOf makes a file of a known incarnation, which is random otherwise.
func fileOf(t *testing.T, path, incarnation string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bbolt.Tx) error {
		if err := boltfile.Buckets(tx, fileBucket, rowsBucket); err != nil {
			return err
		}
		return put(tx.Bucket([]byte(fileBucket)), incarnationKey, []byte(incarnation))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func buckets(t *testing.T, db *bbolt.DB) (text string) {
	t.Helper()
	err := db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(bucket []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(key, value []byte) error {
				text += fmt.Sprintf("%s %+q %+q\n", bucket, key, value)
				return nil
			})
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}
