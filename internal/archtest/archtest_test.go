package archtest

import (
	"errors"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestImportsKeepTheRules(t *testing.T) {
	edges, err := imports(moduleRoot(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(edges) < 50 {
		t.Fatalf("only %d imports found: the search is broken", len(edges))
	}
	for _, e := range edges {
		if err := check(e); err != nil {
			t.Error(err)
		}
	}
}

func TestRulesAreAboutPackagesThatExist(t *testing.T) {
	edges, err := imports(moduleRoot(t))
	if err != nil {
		t.Fatal(err)
	}
	exists := func(pkg string) bool {
		return pkg == "." || slices.ContainsFunc(edges, func(e edge) bool { return within(e.from, pkg) })
	}
	for _, err := range checkRules(rules, exists) {
		t.Error(err)
	}
	wrong := []rule{{pkg: "api"}, {pkg: "nowhere"}, {pkg: "api", ours: []string{"gone"}}}
	if errs := checkRules(wrong, exists); len(errs) != 3 {
		t.Errorf("%v, want three complaints about %+v", errs, wrong)
	}
}

// Templates call methods by their names, so a program that has one keeps every method
// of every type that it knows: a third of the binary.
func TestNothingImportsTemplates(t *testing.T) {
	edges, err := imports(moduleRoot(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range edges {
		if strings.HasSuffix(e.to, "/template") && !e.test && !within(e.from, "bench") {
			t.Errorf("%s imports %s, which makes the binary 10 MB larger", e.from, e.to)
		}
	}
}

// A rule that nothing can break keeps nothing.
func TestRulesForbid(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     string // part of the complaint
	}{
		{"fencing", "github.com/jackc/pgx/v5", "only the standard library"},
		{"fencing", module + "/lockcore", "may import only []"},
		{"api/wire", module + "/fencing", "may import only []"},
		{"migrations", "github.com/jackc/pgx/v5", "only the standard library"},
		{"lockcore", "github.com/redis/go-redis/v9", "only the standard library"},
		{"lockcore", "net/http", "no HTTP"},
		{"lockcore", module + "/storage/redisnode", "may import only [fencing]"},
		{"lockcore", module + "/lockcore/nodetest", "test kits"},
		{"storage/redisnode", module + "/api/wire", "may import only"},
		{"storage/redisnode", module + "/storage/boltstore", "may import only"},
		{"storage/boltstore", module + "/fencing/guardtest", "test kits"},
		{"api", module + "/storage/pgguard", "may import only"},
		{"api", module + "/lockcore/redlock", "may import only"},
		{"api", module + "/lockcore/node", "may import only"},
		{"storage/redisnode", module + "/lockcore/redlock", "may import only"},
		{"lockcore/redlock", module + "/lockcore/sets", "may import only"},
		{"lockcore/redlock", module + "/lockcore/compose", "may import only"},
		{"lockcore/compose", module + "/lockcore/node", "may import only"},
		{"lockcore/replica", module + "/lockcore/redlock", "may import only"},
		{"api", module + "/client", "may import only"},
		{"client", module + "/lockcore", "may import only"},
		{"client", module + "/api", "may import only"},
		{"cmd/fencelock", module + "/internal/testenv", "test kits"},
		{"cmd/fencelock", "testing", "wires"},
		{"cmd/other", module + "/cmd/fencelock", "no package imports cmd"},
		{"cmd/fencelock/internal/client", module + "/cmd/fencelock/internal/server", "may import only"},
		{"cmd/fencelock/internal/client", module + "/cmd/fencelock/internal/backend", "may import only"},
		{"cmd/fencelock/internal/client", module + "/api", "may import only"},
		{"cmd/fencelock/internal/client", module + "/lockcore/sets", "may import only"},
		{"cmd/fencelock/internal/client", module + "/storage/redisnode", "may import only"},
		{"cmd/fencelock/internal/server", module + "/cmd/fencelock/internal/client", "may import only"},
		{"cmd/fencelock/internal/server", module + "/client", "may import only"},
		{"cmd/fencelock/internal/operator", module + "/cmd/fencelock/internal/client", "may import only"},
		{"cmd/fencelock/internal/operator", module + "/cmd/fencelock/internal/server", "may import only"},
		{"cmd/fencelock/internal/cli", module + "/cmd/fencelock/internal/client", "may import only"},
		{"internal/testenv", module + "/lockcore", "may import only []"},
		{"chaos", module + "/lockcore", "may import only [internal/testenv internal/vacancy api/wire]"},
		{"cmd/fencelock", module + "/chaos", "test kits"},
		{"utils", "fmt", "no import rule"},
	} {
		err := check(edge{from: c.from, to: c.to})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s -> %s: %v, want a complaint with %q", c.from, c.to, err, c.want)
		}
	}
}

func TestRulesAllow(t *testing.T) {
	for _, e := range []edge{
		{from: "fencing", to: "context"},
		{from: "lockcore", to: module + "/fencing"},
		{from: "storage/redisnode", to: "github.com/redis/go-redis/v9"},
		{from: "storage/pgguard", to: module + "/migrations"},
		{from: "storage/pgguard", to: module + "/storage/pgguard/internal/sql"},
		{from: "api", to: module + "/api/wire"},
		{from: "api", to: module + "/api/access"},
		{from: "client", to: module + "/api/wire"},
		{from: "cmd/fencelock", to: module + "/storage/boltstore"},
		{from: "cmd/fencelock", to: module + "/cmd/fencelock/internal/server"},
		{from: "cmd/fencelock/internal/client", to: module + "/client"},
		{from: "lockcore/nodetest", to: "testing"},
		{from: "storage/redisnode", to: module + "/internal/testenv", test: true},
		{from: "fencing", to: "github.com/jackc/pgx/v5", test: true},
	} {
		if err := check(e); err != nil {
			t.Error(err)
		}
	}
}

// moduleRoot is the nearest folder upwards that has a go.mod.
func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for !isModule(dir) {
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above this test")
		}
		dir = up
	}
	return dir
}

func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return !errors.Is(err, fs.ErrNotExist)
}

// isReleased says whether a module is in go.work.
func isReleased(root, dir string) bool {
	work, err := os.ReadFile(filepath.Join(root, "go.work"))
	rel, _ := filepath.Rel(root, dir)
	return err == nil && slices.Contains(strings.Fields(string(work)), "./"+filepath.ToSlash(rel))
}

// imports lists the imports of all Go files of the modules released with the one at root, whatever
// their build tags.
func imports(root string) ([]edge, error) {
	var edges []edge
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skip(root, path, d.Name())
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		found, err := fileImports(root, path)
		edges = append(edges, found...)
		return err
	})
	return edges, err
}

// skip leaves out what the go command leaves out: test data, folders whose name says
// so, and the modules that are not released with the one at root.
func skip(root, path, name string) error {
	if path == root {
		return nil
	}
	if name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || isModule(path) && !isReleased(root, path) {
		return filepath.SkipDir
	}
	return nil
}

func fileImports(root, path string) ([]edge, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Rel(root, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	edges := make([]edge, 0, len(file.Imports))
	for _, spec := range file.Imports {
		to, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		edges = append(edges, edge{from: filepath.ToSlash(dir), to: to, test: strings.HasSuffix(path, "_test.go")})
	}
	return edges, nil
}

// What a call needs is in its parameters: a value in a context is there or not, and nobody
// sees which (the caller of a lease was once).
func TestNothingOfALeaseIsHiddenInAContext(t *testing.T) {
	root := moduleRoot(t)
	err := filepath.WalkDir(filepath.Join(root, "lockcore"), func(path string, d fs.DirEntry, err error) error {
		kit := strings.Contains(path, "servicetest")
		if err != nil || d.IsDir() || kit || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "context.WithValue(") {
			t.Errorf("%s puts a value into a context", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
