package apicheck

import (
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
)

// Listing returns the declarations of everything that the package in a folder exports, without comments and
// values, sorted by their text.
func Listing(dir string) (string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", err
	}
	var exported []string
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		found, err := declarations(path)
		if err != nil {
			return "", err
		}
		exported = append(exported, found...)
	}
	if len(exported) == 0 {
		return "", fmt.Errorf("%s exports nothing", dir)
	}
	slices.Sort(exported)
	return strings.Join(exported, "\n\n") + "\n", nil
}

func declarations(path string) ([]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var exported []string
	for _, decl := range file.Decls {
		if d, ok := decl.(*ast.GenDecl); ok && d.Tok == token.IMPORT || !exports(decl) {
			continue
		}
		for _, one := range apart(decl) {
			var text strings.Builder
			if err := format.Node(&text, files, one); err != nil {
				return nil, err
			}
			exported = append(exported, strings.ReplaceAll(text.String(), "\n\n", "\n"))
		}
	}
	return exported, nil
}

// exports removes everything that is not exported from a declaration, and reports whether anything is left.
func exports(decl ast.Decl) bool {
	if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil {
		if !ast.IsExported(strings.TrimPrefix(types.ExprString(f.Recv.List[0].Type), "*")) {
			return false
		}
	}
	return ast.FileExports(&ast.File{Name: ast.NewIdent("p"), Decls: []ast.Decl{decl}})
}

// apart splits a declaration of several names into one declaration for each. It removes function bodies and
// the values of variables.
func apart(decl ast.Decl) []ast.Node {
	if f, ok := decl.(*ast.FuncDecl); ok {
		f.Body = nil
		return []ast.Node{f}
	}
	group, ok := decl.(*ast.GenDecl)
	if !ok {
		return nil
	}
	var each []ast.Node
	for _, spec := range group.Specs {
		if value, ok := spec.(*ast.ValueSpec); ok && group.Tok == token.VAR {
			value.Values = nil
		}
		each = append(each, &ast.GenDecl{Tok: group.Tok, Specs: []ast.Spec{spec}})
	}
	return each
}
