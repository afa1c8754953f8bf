package docscheck

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// maxWords is the limit of a page, in words without its generated parts. A page above it is
// split into two that readers would look for under different names; it is never squeezed.
const maxWords = 2_000

// ownLimit has the pages with a limit of their own, and says why.
var ownLimit = map[string]int{
	"README.md":        950,   // a visitor decides in minutes
	"CHANGELOG.md":     900,   // what a release contains, not how it was built
	"CONTRIBUTING.md":  3_500, // read once, by those who change the code
	"docs/PROTOCOL.md": 9_000, // the rules refer to one another, so they stay on one page
}

func TestPagesAreShort(t *testing.T) {
	root := moduleRoot(t)
	names := slices.Collect(maps.Keys(ownLimit))
	for name := range pages(t, root) {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		n, limit := words(written(name, text(t, filepath.Join(root, filepath.FromSlash(name))))), maxWords
		if own, ok := ownLimit[name]; ok {
			limit = own
		}
		t.Logf("%6d %s", n, name)
		if n > limit {
			t.Errorf("%s has %d words, more than %d: split it", name, n, limit)
		}
	}
}

// bench is a table that a whole run of the benchmark writes.
var bench = regexp.MustCompile(`(?s)<!-- Written by make bench -->.*?\n\n`)

// generated are the parts of pages that a test or a run writes: nobody can shorten them.
var generated = map[string]*regexp.Regexp{
	"README.md":                       bench,
	"docs/explanation/benchmarks.md":  bench,
	"docs/explanation/engines.md":     bench,
	"docs/reference/access.md":        regexp.MustCompile(`(?s)<!-- calls: .*<!-- end of calls -->`),
	"docs/reference/configuration.md": regexp.MustCompile(`(?s)<!-- Generated from .*`),
	"docs/reference/errors.md":        regexp.MustCompile(`(?s).*`),
	"docs/reference/faults.md":        regexp.MustCompile(`(?s).*`),
	"internal/sim/README.md":          regexp.MustCompile(`(?s)<!-- mutants: .*<!-- end of mutants -->`),
}

// written is a page without what is generated.
func written(name, page string) string {
	if part := generated[name]; part != nil {
		return part.ReplaceAllString(page, "")
	}
	return page
}

// words counts the words of a page, code included and comments not.
func words(page string) (n int) {
	for word := range strings.FieldsSeq(comment.ReplaceAllString(page, "")) {
		if strings.IndexFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) >= 0 {
			n++
		}
	}
	return n
}

func TestWords(t *testing.T) {
	if n := words("# A page\n<!-- not this -->\n| `b c` | --- | 12 |\n```\ncode\n```\n"); n != 6 {
		t.Errorf("%d words, want 6", n)
	}
}

func TestOneSentenceALine(t *testing.T) {
	for name, path := range pages(t, moduleRoot(t)) {
		for i, line := range prose(text(t, path)) {
			if !strings.HasPrefix(line, "|") && sentenceEnd.MatchString(line) {
				t.Errorf("%s:%d: begin a new line after %q", name, i+1, sentenceEnd.FindString(line))
			}
		}
	}
}

// Relative links of all pages lead somewhere, and so do the pages that comments,
// manifests and messages name.
func TestLinks(t *testing.T) {
	root := os.DirFS(moduleRoot(t))
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if entry != nil && name != "." && strings.HasPrefix(entry.Name(), ".") {
				return fs.SkipDir
			}
			return err
		}
		for _, dead := range deadLinks(t, root, name) {
			t.Errorf("%s: %s", name, dead)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDeadLinksAreFound(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "docs"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"docs/a.md": "# A `b`, c\n\n## Twice\n\n## Twice\n\n```\n[code](no.md) ## Code\n```\n",
		"good.md":   "[a](docs/a.md#a-b-c) [b](docs/a.md#twice-1) [c](https://x/no.md) `[d](no.md)` docs/a.md#twice",
		"bad.md":    "[a](docs/b.md) [b](docs/a.md#code) [c](#none) ![d](no.svg)",
		"bad.go":    "// See docs/gone.md and docs/a.md#none.",
	} {
		writeFile(t, filepath.Join(dir, filepath.FromSlash(name)), []byte(content))
	}
	for name, want := range map[string]int{"docs/a.md": 0, "good.md": 0, "bad.md": 4, "bad.go": 2} {
		if dead := deadLinks(t, os.DirFS(dir), name); len(dead) != want {
			t.Errorf("%s has %d dead links, want %d: %q", name, len(dead), want, dead)
		}
	}
	for line, long := range map[string]bool{
		"One. Two.": true, "It is `a`. `b` is not.": true, "Go 1.26 is new.": false, "1. First": false, "A (so it is). **Bold**.": true, "e.g. Redis": false,
	} {
		if sentenceEnd.MatchString(line) != long {
			t.Errorf("%q: two sentences is %t", line, !long)
		}
	}
}

var (
	comment     = regexp.MustCompile(`(?s)<!--.*?-->`)
	inlineCode  = regexp.MustCompile("`[^`]*`")
	link        = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	mention     = regexp.MustCompile(`\bdocs/[A-Za-z0-9_./-]+\.md(#[a-z0-9_-]+)?`)
	mentioning  = []string{".md", ".go", ".yaml", ".yml", ".sql", ".env", ".service", ".html", ".js", ".py", ".sh", ""}
	sentenceEnd = regexp.MustCompile("[a-z0-9)`*\\]\"”][a-z)`*\\]\"”][.!?] +[A-Z`*\\[\"“(]")
)

// deadLinks are the links of a page, and the pages below docs/ that a file
// names, that do not exist.
func deadLinks(t *testing.T, root fs.FS, name string) (dead []string) {
	t.Helper()
	if !slices.Contains(mentioning, path.Ext(name)) || strings.HasPrefix(name, "internal/docscheck/") {
		return nil
	}
	content, err := fs.ReadFile(root, name)
	if err != nil {
		t.Fatal(err)
	}
	check := func(target, from string) {
		page, anchor, _ := strings.Cut(target, "#")
		file := path.Join(from, page)
		if page == "" {
			file = name
		}
		linked, err := fs.ReadFile(root, file)
		switch info, errStat := fs.Stat(root, file); {
		case errors.Is(errStat, fs.ErrNotExist):
			dead = append(dead, fmt.Sprintf("%s does not exist", target))
		case errStat != nil || info.IsDir() || anchor == "" || path.Ext(file) != ".md":
		case err != nil || !slices.Contains(anchors(string(linked)), anchor):
			dead = append(dead, fmt.Sprintf("%s has no heading #%s", file, anchor))
		}
	}
	if path.Ext(name) != ".md" {
		for _, target := range mention.FindAllString(string(content), -1) {
			check(target, ".")
		}
		return dead
	}
	for _, line := range prose(string(content)) {
		for _, match := range link.FindAllStringSubmatch(inlineCode.ReplaceAllString(line, ""), -1) {
			if !strings.Contains(match[1], "://") && !strings.HasPrefix(match[1], "mailto:") {
				check(match[1], path.Dir(name))
			}
		}
	}
	return dead
}

// prose is a page with its comments and fenced blocks blanked, line by line.
func prose(page string) []string {
	page = comment.ReplaceAllStringFunc(page, func(c string) string { return strings.Repeat("\n", strings.Count(c, "\n")) })
	lines, fenced := strings.Split(page, "\n"), false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence || fenced {
			lines[i] = ""
		}
		fenced = fenced != fence
	}
	return lines
}

var notInAnchors = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// anchors are the ids that GitHub gives the headings of a page.
func anchors(page string) (ids []string) {
	seen := map[string]int{}
	for _, line := range prose(page) {
		title := strings.TrimLeft(line, "#")
		if title == line || !strings.HasPrefix(title, " ") {
			continue
		}
		title = link.ReplaceAllString(title, "")
		id := strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), ""), " ", "-")
		ids = append(ids, id)
		if n := seen[id]; n > 0 {
			ids[len(ids)-1] = fmt.Sprintf("%s-%d", id, n)
		}
		seen[id]++
	}
	return ids
}

func text(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
