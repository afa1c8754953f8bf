package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
)

// watcher lists again and again. If a list fails, it prints that the state is unknown, and continues.
type watcher struct {
	out      io.Writer
	json     bool
	terminal *os.File // the terminal that is redrawn; nil if the output is not a terminal
	known    heldLocks
	at       time.Time // when known was read; zero for never
	frames   int
}

// follow lists the locks until ctx ends, or until the service denies access.
func (l listing) follow(ctx context.Context, locks *client.Client, out io.Writer) error {
	w := &watcher{out: out, json: l.output == "json"}
	if cli.IsTerminal(out) && !w.json {
		w.terminal, _ = out.(*os.File)
	}
	defer w.end()
	tick := time.NewTicker(l.interval)
	defer tick.Stop()
	for {
		held, err := l.look(ctx, locks)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, client.ErrDenied) {
			return err
		}
		if err == nil {
			w.known, w.at = held, time.Now()
		}
		if err := w.show(err); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// show writes one frame, in a single write so that it does not flicker. If unknown is not nil, the frame
// says why the state is unknown.
func (w *watcher) show(unknown error) error {
	defer func() { w.frames++ }()
	var text []byte
	var err error
	switch {
	case w.json:
		return printLine(w.out, w.known.locks, unknown)
	case w.terminal != nil:
		text = w.redraw(unknown)
	default:
		text, err = w.next(unknown)
	}
	if err != nil {
		return err
	}
	_, err = w.out.Write(text)
	return err
}

// end leaves the cursor below the last frame.
func (w *watcher) end() {
	if w.terminal != nil && w.frames > 0 {
		_, _ = fmt.Fprintln(w.terminal)
	}
}

// printLine prints v as one line of JSON, or an object that says why the state is unknown.
func printLine(out io.Writer, v any, unknown error) error {
	if unknown != nil {
		v = map[string]string{"state": "unknown", "reason": unknown.Error()}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := out.Write(screen.JSON(b.Bytes()))
	return err
}

// next returns the frame that follows the previous one.
func (w *watcher) next(unknown error) ([]byte, error) {
	var b bytes.Buffer
	if w.frames > 0 {
		b.WriteByte('\n')
	}
	if unknown != nil {
		b.WriteString(screen.Visible(unknown.Error()) + "\n")
		return b.Bytes(), nil
	}
	if w.known.only != "" {
		b.WriteString(screen.Visible(w.known.only) + "\n")
	}
	err := printLocks(&b, w.known.locks)
	return b.Bytes(), err
}

// The terminal control sequences that redraw uses.
const (
	clearScreen  = "\x1b[2J"
	toTopLeft    = "\x1b[H"
	clearLine    = "\x1b[K"
	clearBelow   = "\x1b[J"
	dim, undimed = "\x1b[2m", "\x1b[22m"
)

// redraw returns a frame that replaces the previous one. It is never wider or higher than the terminal.
// The header comes first, and a last line counts the rows for which there was no room.
func (w *watcher) redraw(unknown error) []byte {
	width, height := screen.Size(w.terminal)
	lines := w.rows(width-1, height, unknown) // terminals differ in what they do after the last column
	var b bytes.Buffer
	if w.frames == 0 {
		b.WriteString(clearScreen)
	}
	b.WriteString(toTopLeft)
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(line + clearLine)
	}
	b.WriteString(clearBelow)
	return b.Bytes()
}

// rows returns the lines of a frame.
func (w *watcher) rows(width, height int, unknown error) []string {
	var notes []string
	if unknown != nil {
		notes = wrapped(unknown.Error(), width)
		if !w.at.IsZero() {
			notes = append(notes, screen.Cut(fmt.Sprintf("This was the list %s ago:", time.Since(w.at).Truncate(time.Second)), width))
		}
	} else if w.known.only != "" {
		notes = wrapped(w.known.only, width)
	}
	notes = notes[:min(len(notes), height)]
	if unknown != nil && w.at.IsZero() {
		return notes
	}
	list := w.list(width, height-len(notes))
	if unknown != nil {
		for i, line := range list {
			list[i] = dim + line + undimed
		}
	}
	return append(notes, list...)
}

// list returns the table in at most height lines.
func (w *watcher) list(width, height int) []string {
	if height <= 0 {
		return nil
	}
	if len(w.known.locks) == 0 {
		return []string{screen.Cut("no locks are held", width)}
	}
	lines := lockTable(w.known.locks).Lines(width)
	if len(lines) <= height {
		return lines
	}
	shown := max(height-1, 1)
	return append(lines[:shown:shown], screen.Cut(fmt.Sprintf("… and %d more: a longer PREFIX lists fewer", len(lines)-shown), width))[:height]
}

// wrapped breaks a text into lines of at most width cells, at spaces if possible.
func wrapped(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(screen.Visible(text)) {
		if line != "" && screen.Width(line)+1+screen.Width(word) > width {
			lines, line = append(lines, line), ""
		}
		line = screen.Cut(strings.TrimPrefix(line+" "+word, " "), width)
	}
	return append(lines, line)
}
