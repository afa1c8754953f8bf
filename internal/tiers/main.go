// Command tiers lists the tests of the working tree with the tier that runs each: 1 is `go test work`, 2 is
// `make verify`, 3 is `make soak`. Each tier also runs the tests of the previous ones. A call of testenv.Long
// or testenv.Soak puts a test into its tier, and the reason in that call is shown. If only a part of a test
// makes the call, the part has a line of its own, marked with a plus.
//
//	go run ./internal/tiers                 the list, and how many tests each tier has
//	go run ./internal/tiers -since REVISION how the tests of a commit have changed their tiers: fails if a test of the first tier now runs only in make soak
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// place is the tier of a test, or of a part of it.
type place struct {
	tier   int
	reason string // why it is not in the first tier
	parts  []place
}

// mark has, by function of testenv, the tier to which a call moves a test.
var mark = map[string]int{"Long": 2, "Soak": 3}

func main() {
	since := flag.String("since", "", "compare with the tests of this commit")
	flag.Parse()
	said, err := run(*since)
	fmt.Print(said)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tiers:", err)
		os.Exit(1)
	}
}

func run(since string) (string, error) {
	now, err := testsNow()
	if err != nil {
		return "", err
	}
	if since == "" {
		return list(now), nil
	}
	then, err := testsOf(since)
	if err != nil {
		return "", err
	}
	return compare(then, now)
}

// tests maps a package and the name of a test, such as "api TestAcquire", to its place.
type tests map[string]place

func list(all tests) string {
	var out strings.Builder
	var count [4]int
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p := all[name]
		count[p.tier]++
		fmt.Fprintf(&out, "%d  %s%s\n", p.tier, name, because(p))
		for _, part := range p.parts {
			fmt.Fprintf(&out, "%d+ %s%s\n", part.tier, name, because(part))
		}
	}
	fmt.Fprintf(&out, "\nfirst tier: %d tests; make verify: %d more; make soak: %d more\n", count[1], count[2], count[3])
	return out.String()
}

func because(p place) string {
	if p.reason == "" {
		return ""
	}
	return "  only it finds " + p.reason
}

// compare lists the tests that have changed their tier. It returns an error if a test of the first tier now
// runs only in make soak.
func compare(then, now tests) (string, error) {
	var out strings.Builder
	var lost, gone, moved, added int
	for _, name := range slices.Sorted(maps.Keys(then)) {
		was, is := then[name], now[name]
		switch {
		case is.tier == 0:
			gone++
			fmt.Fprintf(&out, "gone    %s, was in tier %d\n", name, was.tier)
		case was.tier == 1 && is.tier == 3:
			lost++
			fmt.Fprintf(&out, "LOST    %s to make soak alone\n", name)
		case was.tier != is.tier:
			moved++
			fmt.Fprintf(&out, "moved   %s from tier %d to %d%s\n", name, was.tier, is.tier, because(is))
		}
		for _, part := range is.parts {
			fmt.Fprintf(&out, "parted  %s in part from tier %d to %d%s\n", name, is.tier, part.tier, because(part))
		}
	}
	for name := range now {
		if then[name].tier == 0 {
			added++
		}
	}
	fmt.Fprintf(&out, "\n%d tests then, %d now: %d added, %d gone, %d moved, %d lost\n", len(then), len(now), added, gone, moved, lost)
	if lost > 0 {
		return out.String(), fmt.Errorf("%d tests left the first tier and are not in make verify", lost)
	}
	return out.String(), nil
}

// testsNow returns the tests of the working tree.
func testsNow() (tests, error) {
	root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return nil, fmt.Errorf("git rev-parse: %w", err)
	}
	files := os.DirFS(strings.TrimSpace(string(root)))
	listed, err := exec.Command("git", "-C", strings.TrimSpace(string(root)), "ls-files", "--cached", "--others", "--exclude-standard", "*_test.go").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	all := tests{}
	for name := range strings.FieldsSeq(string(listed)) {
		file, err := files.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was removed from the working tree, but not from the index
		}
		if err != nil {
			return nil, err
		}
		source, err := io.ReadAll(file)
		_ = file.Close()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if err := all.add(name, source); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// testsOf returns the tests of a commit.
func testsOf(revision string) (tests, error) {
	archive, err := exec.Command("git", "archive", "--format=tar", revision).Output()
	if err != nil {
		return nil, fmt.Errorf("git archive %s: %w", revision, err)
	}
	all := tests{}
	for files := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("git archive %s: %w", revision, err)
		}
		if !strings.HasSuffix(header.Name, "_test.go") {
			continue
		}
		source, err := io.ReadAll(files)
		if err != nil {
			return nil, fmt.Errorf("git archive %s: %w", revision, err)
		}
		if err := all.add(header.Name, source); err != nil {
			return nil, err
		}
	}
}

// add adds the tests of one file.
func (all tests) add(name string, source []byte) error {
	file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv != nil || f.Body == nil || !strings.HasPrefix(f.Name.Name, "Test") || f.Name.Name == "TestMain" {
			continue
		}
		all[path.Dir(filepath.ToSlash(name))+" "+f.Name.Name] = placeOf(f)
	}
	return nil
}

// placeOf finds the calls that move a test, or a part of it, to a later tier.
func placeOf(f *ast.FuncDecl) place {
	p := place{tier: 1}
	whole := map[*ast.CallExpr]bool{}
	for _, statement := range f.Body.List {
		if s, ok := statement.(*ast.ExprStmt); ok {
			if call, ok := s.X.(*ast.CallExpr); ok {
				whole[call] = true
			}
		}
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		tier := mark[ofTestenv(call.Fun)]
		if tier == 0 || len(call.Args) != 2 {
			return true
		}
		found := place{tier: tier, reason: text(call.Args[1])}
		if whole[call] {
			p.tier, p.reason = found.tier, found.reason
		} else {
			p.parts = append(p.parts, found)
		}
		return true
	})
	// In commits from before the marks, the names of tests say which belong to make soak.
	if p.tier == 1 && len(p.parts) == 0 && strings.HasPrefix(f.Name.Name, "TestSoak") {
		p.tier = 3
	}
	return p
}

// ofTestenv returns the name of a function that is called as one of package testenv, whose own tests name no package;
// "" for another.
func ofTestenv(function ast.Expr) string {
	switch f := function.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if from, ok := f.X.(*ast.Ident); ok && from.Name == "testenv" {
			return f.Sel.Name
		}
	}
	return ""
}

func text(e ast.Expr) string {
	if literal, ok := e.(*ast.BasicLit); ok {
		if s, err := strconv.Unquote(literal.Value); err == nil {
			return s
		}
	}
	return "what its words say when it runs"
}
