package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Continuous integration runs the tests by the command of README.md, to the letter, and neither it nor make verify
// chooses tests by their names: what a pattern leaves out is missed by nobody.
func TestNoNameDecidesWhatRuns(t *testing.T) {
	root := moduleRoot(t)
	text := func(name string) string {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	_, develop, _ := strings.Cut(text("README.md"), "\n## Develop\n")
	command := regexp.MustCompile("(?s)```sh\n(.*?)\n```").FindStringSubmatch(develop)
	if command == nil {
		t.Fatal("README.md has no command in its section Develop")
	}
	script := text(".ci/run")
	if !slices.Contains(strings.Split(script, "\n"), command[1]) {
		t.Errorf(".ci/run has no line %q, which README.md says", command[1])
	}
	recipes := regexp.MustCompile(`(?m)^verify[a-z-]*:.*\n(\t.*\n)+|^TEST = .*\n`).FindAllString(text("Makefile"), -1)
	if len(recipes) != 5 {
		t.Fatalf("%d recipes of make verify and its flags, want 5", len(recipes))
	}
	chooses := regexp.MustCompile(`\s-(run|skip|short)\b`)
	for _, recipe := range append(recipes, script) {
		if chooses.MatchString(recipe) {
			t.Errorf("it chooses tests by their names:\n%s", recipe)
		}
	}
}
