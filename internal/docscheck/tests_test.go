package docscheck

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	testFunction  = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)`)
	testPattern   = regexp.MustCompile(`-run '?\^?([A-Z]\w*(?:\\?\|\w+)*)`)
	testName      = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*`)
	testFilePath  = regexp.MustCompile(`\b[\w/]+/\w+_test\.go\b`)
	testsAreNamed = 20 // at least, on all pages
)

// The tests that pages name exist: a promise whose test was renamed looks tested,
// and go test -run of a name that is gone succeeds.
func TestNamedTestsExist(t *testing.T) {
	root := os.DirFS(moduleRoot(t))
	var functions []string
	named := map[string][]string{} // by page
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		switch {
		case strings.HasSuffix(name, "_test.go"):
			for _, match := range testFunction.FindAllStringSubmatch(contentOf(t, root, name), -1) {
				functions = append(functions, match[1])
			}
		case path.Ext(name) == ".md":
			named[name] = namedTests(contentOf(t, root, name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for page, tests := range named {
		for _, test := range tests {
			count++
			if strings.HasSuffix(test, ".go") {
				if _, err := fs.Stat(root, test); err != nil {
					t.Errorf("%s names %s: %v", page, test, err)
				}
			} else if !slices.ContainsFunc(functions, regexp.MustCompile(test).MatchString) {
				t.Errorf("%s names a test like %s: there is none", page, test)
			}
		}
	}
	if count < testsAreNamed {
		t.Errorf("the pages name %d tests", count)
	}
}

// namedTests are patterns for names of tests, and paths of their files.
func namedTests(page string) (tests []string) {
	for _, match := range testPattern.FindAllStringSubmatch(page, -1) {
		tests = append(tests, strings.FieldsFunc(match[1], func(r rune) bool { return r == '|' || r == '\\' })...)
	}
	return append(append(tests, testName.FindAllString(page, -1)...), testFilePath.FindAllString(page, -1)...)
}

func contentOf(t *testing.T, root fs.FS, name string) string {
	t.Helper()
	content, err := fs.ReadFile(root, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
