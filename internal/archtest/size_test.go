package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

const (
	maxFile     = 600 // lines
	maxFunction = 70
)

// No file is longer than a reader takes in, and no function than a screen. A function of a test may be: some are
// one story or one table, which parts would not make clearer.
func TestNothingIsLong(t *testing.T) {
	root := moduleRoot(t)
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules" || path != root && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		files++
		return checkSize(t, path)
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 500 {
		t.Errorf("only %d files found: the search is broken", files)
	}
}

func checkSize(t *testing.T, path string) error {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if lines := set.File(file.Pos()).LineCount(); lines > maxFile {
		t.Errorf("%s has %d lines, at most %d: give a topic of it a file of its own", path, lines, maxFile)
	}
	if strings.HasSuffix(path, "_test.go") {
		return nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		f, is := n.(*ast.FuncDecl)
		if !is {
			return true
		}
		if lines := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1; lines > maxFunction {
			t.Errorf("%s: %s has %d lines, at most %d: which of its jobs has a name?", set.Position(f.Pos()), f.Name.Name, lines, maxFunction)
		}
		return false
	})
	return nil
}
