package api

import (
	"embed"
	"fmt"
	"html"
	"strconv"
	"strings"
)

// problemTexts are the problems' explanations, one fragment of HTML each.
//
//go:embed problems/*.html
var problemTexts embed.FS

const pageLayout = `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{slug} – fencelock</title>
<style>
:root { color-scheme: light dark }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 42rem; margin: 3rem auto; padding: 0 1rem }
code, pre { font-family: ui-monospace, monospace; font-size: .95em }
.status { opacity: .7 }
.do::before { content: "What a client does: " }
</style>
</head>
<body>
<p class="status"><code>{slug}</code> · HTTP {status}</p>
<h1>{title}</h1>
{text}</body>
</html>
`

// renderPages makes every problem's page. It panics if a page lacks its text, which a test would find.
func renderPages(kinds []problem) map[string][]byte {
	pages := make(map[string][]byte, len(kinds))
	for _, k := range kinds {
		text, err := problemTexts.ReadFile("problems/" + k.slug + ".html")
		if err != nil {
			panic(fmt.Sprintf("api: problem type %s has no page: %v", k.slug, err))
		}
		fill := strings.NewReplacer(
			"{slug}", k.slug,
			"{status}", strconv.Itoa(k.status),
			"{title}", html.EscapeString(k.title),
			"{text}", string(text),
		)
		pages[k.slug] = []byte(fill.Replace(pageLayout))
	}
	return pages
}
