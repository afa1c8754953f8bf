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
	refused := false
	w := watch{logger: slog.New(slog.NewTextHandler(&log, nil)), Files: Files{
		Name: "them", Paths: []string{one, two}, Load: func() error { loads++; return broken }, Refused: func(is bool) { refused = is },
	}}
	after := func(what string, wanted int, errorsLogged int) {
		t.Helper()
		w.look()
		if logged := strings.Count(log.String(), "level=ERROR"); loads != wanted || logged != errorsLogged {
			t.Errorf("%s: %d loads and %d errors, want %d and %d", what, loads, logged, wanted, errorsLogged)
		}
	}
	after("the first look", 1, 0)
	if strings.Contains(log.String(), "is in use now") {
		t.Error("the first look is logged as a change")
	}
	after("nothing changed", 1, 0)
	write(two, "c")
	after("one changed, as long as before", 2, 0)
	after("nothing changed since", 2, 0)
	broken = errors.New("half written")
	write(one, "x")
	after("broken", 3, 0)
	if refused {
		t.Error("reported at the first look, when the file may be half written")
	}
	after("still broken", 4, 1)
	if !refused {
		t.Error("files that cannot be used are not reported")
	}
	after("broken for long", 5, 1)
	write(one, "y")
	after("broken in another way", 6, 1)
	after("still", 7, 2)
	broken = nil
	after("load takes it now, as when a missing key has come", 8, 2)
	after("good", 8, 2)
	if refused {
		t.Error("files that are good again are still reported")
	}
	if err := os.Remove(one); err != nil {
		t.Fatal(err)
	}
	after("gone", 9, 2)
}
