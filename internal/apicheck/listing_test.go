package apicheck_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/apicheck"
)

var update = flag.Bool("update", false, "write the listings again")

// What applications import changes only with its listing:
// go test ./internal/apicheck -update. Say in CHANGELOG.md what a user has to change.
func TestAPI(t *testing.T) {
	for _, pkg := range []string{"client", "fencing", "fencing/fencinghttp", "fencing/fencinggrpc", "api/wire", "storage/mysqlguard", "storage/pgguard"} {
		got, err := apicheck.Listing(filepath.Join("..", "..", pkg))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", strings.ReplaceAll(pkg, "/", "_")+".txt")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range difference(string(want), got) {
			t.Errorf("%s: %s", pkg, line)
		}
	}
}

// difference has a line for each declaration that one has and the other has not.
func difference(want, got string) (lines []string) {
	before, now := split(want), split(got)
	for text := range before {
		if !now[text] {
			lines = append(lines, "no longer exported: "+text)
		}
	}
	for text := range now {
		if !before[text] {
			lines = append(lines, "not in the listing: "+text)
		}
	}
	return lines
}

func split(listing string) map[string]bool {
	all := map[string]bool{}
	for text := range strings.SplitSeq(strings.TrimSpace(listing), "\n\n") {
		all[text] = true
	}
	return all
}

func TestListing(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.go": "package a\n\nimport \"fmt\"\n\n// T is.\ntype T struct {\n\tA int // a\n\tb int\n}\n\ntype u int\n\nfunc (T) M(x int) error { return fmt.Errorf(\"\") }\nfunc (T) m() {}\nfunc (u) M() {}\n" +
			"var E, f = 1, 2\n\nconst (\n\tA = 1\n\tB = 2\n)\n\ntype I interface {\n\tM()\n\tm()\n}\n",
		"a_test.go": "package a\n\nfunc Test() {}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := apicheck.Listing(dir)
	want := "const A = 1\n\nconst B = 2\n\nfunc (T) M(x int) error\n\ntype I interface {\n\tM()\n\t// contains filtered or unexported methods\n}\n\ntype T struct {\n\tA int\n\t// contains filtered or unexported fields\n}\n\nvar E\n"
	if err != nil || normal(got) != normal(want) {
		t.Errorf("%v, lists\n%s\nwant\n%s", err, got, want)
	}
	if lines := difference(want, strings.Replace(want, "A int", "A int64", 1)); len(lines) != 2 {
		t.Errorf("%q", lines)
	}
	if _, err := apicheck.Listing(t.TempDir()); err == nil {
		t.Error("an empty folder has a listing")
	}
}

func normal(text string) string { return strings.Join(strings.Fields(text), " ") }
