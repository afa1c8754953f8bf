package api_test

import (
	"flag"
	"fmt"
	"html"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api"
)

var updatePage = flag.Bool("update", false, "write docs/reference/errors.md again")

const errorsPage = "../docs/reference/errors.md"

// docs/reference/errors.md is made of the table of problems and of the pages that the server serves.
func TestErrorsPage(t *testing.T) {
	var page strings.Builder
	page.WriteString(errorsPageHead)
	var sections strings.Builder
	for _, kind := range api.Kinds() {
		text, err := api.ProblemText(kind.Slug)
		if err != nil {
			t.Fatal(err)
		}
		do, text, ok := strings.Cut(strings.TrimPrefix(text, `<p class="do">`), "</p>\n")
		if !ok || strings.Contains(do, "<p") {
			t.Fatalf("%s.html does not begin with what a client does, as <p class=\"do\">", kind.Slug)
		}
		fmt.Fprintf(&page, "| [`%s`](#%s) | %d | %s | %s |\n", kind.Slug, kind.Slug, kind.Status, kind.Title, markdown(do))
		fmt.Fprintf(&sections, "\n## %s\n\n%s\n", kind.Slug, markdown(text))
	}
	page.WriteString(sections.String())
	if left := regexp.MustCompile(`</?[a-z]+[^>]*>|&[a-z]+;`).FindString(regexp.MustCompile("`[^`]*`|<!--.*-->").ReplaceAllString(page.String(), "")); left != "" {
		t.Fatalf("the texts have %s, which this test does not turn into Markdown", left)
	}
	if *updatePage {
		if err := os.WriteFile(errorsPage, []byte(page.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(errorsPage)
	if err != nil || string(got) != page.String() {
		t.Errorf("%s is not what api/problems says: go test ./api -run TestErrorsPage -update (%v)", errorsPage, err)
	}
}

const errorsPageHead = `# Errors

<!-- Generated from api/problems by: go test ./api -run TestErrorsPage -update -->

Every error response is ` + "`application/problem+json`" + ` ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)).
Its ` + "`type`" + ` is ` + "`/problems/`" + ` and a name of this table, and a server shows the text below at that path.

*Again* means: with the same key, body and token.
*Stop* means: the same request gets the same response.
For any other type, try again after 408, 429 and 5xx, and otherwise stop.

The guard's errors in SQL are on the pages of [Postgres](guard.md#errors) and [MariaDB](guard-mariadb.md#errors), and the command line has [exit codes](cli.md#exit-codes).

| type | status | meaning | what a client does |
| --- | --- | --- | --- |
`

var (
	sentences = regexp.MustCompile("([A-Za-z0-9)`][.!?]) +([A-Z`(])")
	newLines  = regexp.MustCompile(`[ \n]*\n[ \n]*`)
	toLink    = regexp.MustCompile(`<a href="/problems/([a-z-]+)">([^<]*)</a>`)
)

// markdown is a text of api/problems with one sentence a line.
func markdown(text string) string {
	text = newLines.ReplaceAllString(strings.TrimSpace(text), " ")
	text = strings.ReplaceAll(text, `<a href="/openapi.yaml">/openapi.yaml</a>`, "[openapi.yaml](../../openapi.yaml)")
	text = toLink.ReplaceAllString(text, "[$2](#$1)")
	text = strings.NewReplacer("<code>", "`", "</code>", "`", "<sup>", "^", "</sup>", "", "<p>", "", "</p> ", "\n\n", "</p>", "",
		"<h2>What to do</h2> ", "**What to do.** ").Replace(text)
	text = strings.Replace(html.UnescapeString(text), "**What to do.** ", "**What to do**:\n", 1)
	return sentences.ReplaceAllString(text, "$1\n$2")
}
