package docscheck

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	ruleHeading = regexp.MustCompile(`(?m)^\*\*(\d+)\. `)
	citedRule   = regexp.MustCompile(`\brules? (\d+)\b`)
)

// PROTOCOL.md has every rule that the code and the pages cite.
func TestCitedRulesExist(t *testing.T) {
	root := os.DirFS(moduleRoot(t))
	protocol, err := fs.ReadFile(root, "docs/PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	rules := map[string]bool{}
	for _, heading := range ruleHeading.FindAllStringSubmatch(string(protocol), -1) {
		rules[heading[1]] = true
	}
	cited := map[string]bool{}
	err = fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "node_modules"):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go" && path.Ext(name) != ".lua" && path.Ext(name) != ".md":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		for _, rule := range citedRule.FindAllStringSubmatch(string(text), -1) {
			cited[rule[1]] = true
			if !rules[rule[1]] {
				t.Errorf("%s cites rule %s, which docs/PROTOCOL.md lacks", name, rule[1])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(cited) < 25 {
		t.Errorf("only %d rules are cited: is the pattern right?", len(cited))
	}
}
