package boltfile

import (
	"path/filepath"
	"testing"
)

// Every commit is synced. A kill of the process would not show a missing sync, because the kernel still has the data.
func TestCommitsAreSynced(t *testing.T) {
	f, err := Open(filepath.Join(t.TempDir(), "file"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if f.db.NoSync || f.db.NoGrowSync {
		t.Error("bbolt does not sync")
	}
}
