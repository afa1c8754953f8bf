package demo

import (
	"bytes"
	"encoding/json"
	"html"
	"io"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/console"
)

// WriteHTML writes the report as a page that loads no other files: the console's drawing of the race with this
// recording, and what the terminal showed, for a reader without JavaScript.
func WriteHTML(w io.Writer, r Report) error {
	files := console.Files()
	recording, err := json.Marshal(r.recording()) // it escapes <, so nothing in it ends the script
	if err != nil {
		return err
	}
	var page, text strings.Builder
	(&printer{w: &text}).report(r)
	page.WriteString(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>A lock is not enough: fencelock demo</title>
<style>
`)
	page.Write(files["console.css"].Body)
	page.WriteString("</style>\n</head>\n<body>\n<main>\n<div class=\"page race\" id=\"race\"></div>\n<div class=\"page race\">\n" +
		"<details class=\"transcript\" id=\"transcript\" open>\n<summary>What the terminal showed</summary>\n<pre tabindex=\"0\">" +
		html.EscapeString(text.String()) + "</pre>\n</details>\n</div>\n</main>\n" +
		"<script type=\"application/json\" id=\"recording\">")
	page.Write(recording)
	page.WriteString("</script>\n<script type=\"module\">\n")
	page.Write(files["race-view.js"].Body)
	page.Write(bytes.Replace(files["race-story.js"].Body, []byte("export default "), []byte("const story = "), 1))
	page.WriteString(`document.getElementById('transcript').open = false;
replay(document.getElementById('race'), story, JSON.parse(document.getElementById('recording').textContent));
</script>
</body>
</html>
`)
	_, err = io.WriteString(w, page.String())
	return err
}

// recording returns the report with the times since a round's beginning alone.
func (r Report) recording() Report {
	rounds := make([]Round, len(r.Rounds))
	for i, round := range r.Rounds {
		rounds[i] = Round{Final: round.Final}
		for _, e := range round.Events {
			e.Time = time.Time{}
			rounds[i].Events = append(rounds[i].Events, e)
		}
	}
	r.Rounds = rounds
	return r
}
