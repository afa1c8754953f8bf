package boltfile

import (
	"path/filepath"
	"testing"
)

// Every commit is synced. No kill of a process would show that one is not: the kernel has what
// was written.
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
