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

// plainWords are patterns that read as translated, each with what to write instead and a
// sentence that has it.
var plainWords = []struct{ pattern, write, example string }{
	{`\bgo(es|ing)? on\b`, "continue", "The server goes on without it."},
	{`\bonce more\b|\banew\b`, "again", "It is sent once more."},
	{`\ball the same\b`, "anyway", "It is checked all the same."},
	{`\bof (then|before)\b`, "earlier, previous", "The leases of before are gone."},
	{`\bas (many|long|much) as may\b`, "the maximum", "There are as many as may be."},
	{`\bfor want of\b`, "for lack of, without", "It fails for want of a quorum."},
	{`\b(is|are|was|were) told\b`, "learns, is reported", "The holder is told."},
	{`\bas (it|they) stands?\b`, "as it is", "A slash may stay as it stands."},
	{`\bcomes? to (hold|have)\b`, "gets", "A client comes to hold it."},
	{`\bstands again\b`, "becomes a candidate again", "The leader stands again."},
	{`\b(the|a) (page|version|lease|one) before\b[.;,:]`, "the previous one", "The cursor of the page before."},
	{`\bknows? of nothing\b`, "unaware", "It continues, and knows of nothing."},
	{`\bone a line\b|\bone key a line\b`, "one per line", "A file of keys, one a line."},
	{`\bthat nobody needs\b`, "unneeded", "Delete values that nobody needs."},
	{`\bsome \d`, "about", "A lock takes some 300 bytes."},
	{`\bas far as\b`, "within, to the extent that", "In order, as far as clocks agree."},
	{`\bthe most (requests|leases|bytes)\b`, "the maximum number of", "It is the most requests a second."},
	{`\bfrom [\d.]+ on\b`, "at least, since", "It must be a number from 1 on."},
	{`\b(file|server|database|network|path|port|tokens?|keys?) of (its|their) own\b`, "its own, separate", "Each needs a file of its own."},
	{`\b(serves?|serving) on\b`, "keeps serving", "The others serve on."},
	{`\b(is|are) answered \d`, "gets", "They are answered 503."},
	{`\bversion before stays\b`, "the previous version", "The version before stays in force."},
	{`\b[Ss]hown are (locks|only)\b|[Nn]ot shown are`, "subject first: are shown", "Not shown are locks that it may not read."},
	{`\bis the address right\b`, "check the address", "Nothing there: is the address right?"},
	{`\bwhich is none\b|\bthat is none\b`, "is not one", "The value null, which is none."},
	{`\b(is|are) no (failure|error|answer|lease id|HTTP|substitute|primitive|UTF-8)`, "is not a", "That is no failure."},
}

// What users read has none of them. CHANGELOG.md is history.
func TestPlainWords(t *testing.T) {
	root := os.DirFS(moduleRoot(t))
	var patterns []*regexp.Regexp
	for _, p := range plainWords {
		patterns = append(patterns, regexp.MustCompile(p.pattern))
	}
	read := 0
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "node_modules"):
			return fs.SkipDir
		case entry.IsDir() || !forUsers(name):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		read++
		for i, line := range strings.Split(string(text), "\n") {
			for p, pattern := range patterns {
				if found := pattern.FindString(line); found != "" {
					t.Errorf("%s:%d: %q reads as translated: write %s", name, i+1, found, plainWords[p].write)
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if read < 60 {
		t.Errorf("only %d files were read", read)
	}
}

// forUsers are the pages, the contract, the problems, and the command line with its help and messages.
func forUsers(name string) bool {
	switch path.Ext(name) {
	case ".md":
		return name != "CHANGELOG.md" && !strings.HasPrefix(name, "bench/")
	case ".html":
		return strings.HasPrefix(name, "api/")
	case ".go":
		return strings.HasPrefix(name, "cmd/fencelock/") && !strings.HasSuffix(name, "_test.go")
	}
	return slices.Contains([]string{"openapi.yaml", "api/console/static/race-story.js", "site/data/engines.yaml", "deploy/prometheus/fencelock.rules.yaml"}, name)
}

func TestPlainWordsAreFound(t *testing.T) {
	for _, p := range plainWords {
		if !regexp.MustCompile(p.pattern).MatchString(p.example) {
			t.Errorf("%s does not find %q", p.pattern, p.example)
		}
	}
}
