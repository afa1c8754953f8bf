package demo

import (
	"bufio"
	"io"
	"strings"
	"sync"
)

// lastWordsMost is how many lines of a process's log are kept.
const lastWordsMost = 8

// lastWords keeps the end of what a process says on its standard error, and
// passes on the first line.
type lastWords struct {
	first  chan string
	ended  chan struct{}
	mu     sync.Mutex
	latest []string
}

func newLastWords() *lastWords {
	return &lastWords{first: make(chan string, 1), ended: make(chan struct{})}
}

// drain reads until the process has closed its end.
func (l *lastWords) drain(from io.ReadCloser) {
	defer close(l.ended)
	defer func() { _ = from.Close() }()
	lines := bufio.NewScanner(from)
	for n := 0; lines.Scan(); n++ {
		if n == 0 {
			l.first <- lines.Text()
		}
		l.add(lines.Text())
	}
	_, _ = io.Copy(io.Discard, from) // after a line too long for the scanner
}

func (l *lastWords) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latest = append(l.latest, line)
	if len(l.latest) > lastWordsMost {
		l.latest = l.latest[1:]
	}
}

// text is what was said last; only after the process has ended.
func (l *lastWords) text() string {
	<-l.ended
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.latest, "\n")
}
