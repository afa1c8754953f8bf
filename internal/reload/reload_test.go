package reload

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWatch(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil { // as editors and Kubernetes do
			t.Fatal(err)
		}
	}
	write(one, "a")
	write(two, "b")
	var log bytes.Buffer
	loads := 0
	var broken error
	w := watch{
		logger: slog.New(slog.NewTextHandler(&log, nil)), what: "them", files: []string{one, two}, seen: look([]string{one, two}),
		load: func() error { loads++; return broken },
	}
	after := func(what string, wanted int, errorsLogged int) {
		t.Helper()
		w.look()
		if logged := strings.Count(log.String(), "level=ERROR"); loads != wanted || logged != errorsLogged {
			t.Errorf("%s: %d loads and %d errors, want %d and %d", what, loads, logged, wanted, errorsLogged)
		}
	}
	after("nothing changed", 0, 0)
	write(two, "c")
	after("one changed, as long as before", 1, 0)
	after("nothing changed since", 1, 0)
	broken = errors.New("half written")
	write(one, "x")
	after("broken", 2, 0)
	after("still broken", 3, 1)
	after("broken for long", 4, 1)
	write(one, "y")
	after("broken in another way", 5, 1)
	after("still", 6, 2)
	broken = nil
	after("load takes it now, as when a missing key has come", 7, 2)
	after("good", 7, 2)
	if err := os.Remove(one); err != nil {
		t.Fatal(err)
	}
	after("gone", 8, 2)
}
