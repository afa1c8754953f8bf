package events

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// plainSeals shows what a message says, and whose it is.
type plainSeals struct{ secret string }

func newSeals(secret string) plainSeals { return plainSeals{secret} }

func (s plainSeals) sealed(text string) string { return s.secret + ":" + text }

func (s plainSeals) SealMessage(text string) (string, bool) {
	return s.sealed(text), s.secret != ""
}

func (s plainSeals) OpenMessage(sealed string) (string, bool) {
	text, ok := strings.CutPrefix(sealed, s.secret+":")
	return text, ok && s.secret != ""
}

func (plainSeals) LeaseKey() string          { return "" }
func (plainSeals) OpensLeaseKey(string) bool { return false }

// TestForgedMessages: nobody without the secret makes an event, or makes one happen again.
func TestForgedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		h := NewHub()
		seals := newSeals("new")
		hearing := NewRelay(h, nil, seals, slog.New(slog.NewJSONHandler(&log, nil)))
		r, err := h.Listen("", true)
		if err != nil {
			t.Fatal(err)
		}
		heard := func(word string) int {
			t.Helper()
			hearing.hear(word)
			list, _, _ := r.Next(nil, 10, all)
			return len(list)
		}
		made := func(number uint64, ago time.Duration) string {
			raw, err := json.Marshal(batch{Server: "y", Number: number, Sent: time.Now().Add(-ago).UnixMilli(), Events: []relay{{Kind: wire.EventGranted, Event: wire.Event{Resource: "a"}}}})
			if err != nil {
				t.Fatal(err)
			}
			return string(raw)
		}
		for name, word := range map[string]string{
			"not sealed":             made(1, 0),
			"under another secret":   newSeals("old").sealed(made(2, 0)),
			"under none":             newSeals("").sealed(made(3, 0)),
			"too long":               seals.sealed(strings.Repeat(" ", maxWord) + made(4, 0)),
			"from before a restart":  seals.sealed(made(5, rememberBatch)),
			"from the time to come":  seals.sealed(made(6, -rememberBatch)),
			"of a version before":    seals.sealed(strings.ReplaceAll(made(7, 0), `"sent"`, `"sent_at"`)),
			"a word of another kind": seals.sealed("x"),
		} {
			if n := heard(word); n > 0 {
				t.Errorf("%s: %d events", name, n)
			}
		}
		if n := strings.Count(log.String(), "a message from another server was refused"); n != 1 {
			t.Errorf("%d lines:\n%s", n, log.String())
		}
		recorded := seals.sealed(made(8, 0))
		if n := heard(recorded); n != 1 {
			t.Errorf("a server's message becomes %d events", n)
		}
		for range 300 { // at every moment after it
			if n := heard(recorded); n > 0 {
				t.Errorf("what was recorded becomes %d events", n)
			}
			time.Sleep(rememberBatch / 100)
		}
		if log := log.String(); strings.Count(log, "was refused") != 2 || !strings.Contains(log, "was sent again") {
			t.Errorf("the log:\n%s", log)
		}
		if n := heard(seals.sealed(made(9, rememberBatch/2))); n != 1 {
			t.Errorf("a late message becomes %d events", n)
		}
	})
}
