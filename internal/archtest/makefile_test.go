package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// make test leaves tests out by their names, in all packages: those that it runs otherwise, and
// tools. So a tool's name is that of no test elsewhere, and what only computes is in the packages
// where that runs. The conformance tests of all stores had the name of a tool once.
func TestMakefileLeavesNoTestOut(t *testing.T) {
	root := moduleRoot(t)
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	variable := func(name string) string {
		found := regexp.MustCompile(`(?m)^` + name + ` *:= *(.*)$`).FindSubmatch(text)
		if found == nil {
			t.Fatalf("the Makefile has no %s", name)
		}
		return strings.ReplaceAll(string(found[1]), "$$", "$")
	}
	tools, compute := regexp.MustCompile(variable("TOOLS")), regexp.MustCompile(variable("COMPUTE"))
	computes := strings.Fields(variable("COMPUTES"))
	tests := testsOf(t, root)
	if len(tests) < 1000 {
		t.Fatalf("only %d names of tests found: the search is broken", len(tests))
	}
	for name, packages := range tests {
		if tools.MatchString(name) && len(packages) != 1 {
			t.Errorf("%s is a tool, and in %v: make test leaves all of them out", name, packages)
		}
		for _, pkg := range packages {
			if compute.MatchString(name) && !slices.Contains(computes, "./"+pkg) {
				t.Errorf("make test runs %s of %s nowhere: it is not in COMPUTES", name, pkg)
			}
		}
	}
}

// testsOf are the packages that have a test of each name.
func testsOf(t *testing.T, root string) map[string][]string {
	t.Helper()
	tests := map[string][]string{}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, found := range function.FindAllSubmatch(source, -1) {
			name := string(found[1])
			tests[name] = append(tests[name], filepath.ToSlash(dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tests
}
