package pgstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
)

// partBytes is how much of a message a notification carries.
const partBytes = 5000

// maxMessage bounds a message assembled from notifications, which any role of the database may send.
const maxMessage = 4 << 20

// Tell sends a message to all servers that are listening to the topic, except through a pooler. The message is
// text without NUL.
func (s *Store) Tell(ctx context.Context, topic, message string) error {
	id := rand.Text()
	var words []string
	for part := 0; part == 0 || message != ""; part++ { // the number distinguishes equal parts
		n := min(len(message), partBytes)
		more := "."
		if n < len(message) {
			more = "+"
		}
		words = append(words, fmt.Sprintf("%s %d%s%s", id, part, more, encode(message[:n])))
		message = message[n:]
	}
	_, err := s.pool.Exec(ctx, `SELECT pg_notify($1, word) FROM unnest($2::text[]) WITH ORDINALITY AS w (word, n) ORDER BY n`, channelOf(topic), words)
	return err
}

// Hear calls heard for every message of a topic until ctx ends, on one connection. Messages that are sent
// while the connection is down are lost.
func (s *Store) Hear(ctx context.Context, topic string, heard func(message string)) {
	var parts assembly
	s.subscribe(ctx, channelOf(topic), subscriber{
		began: func() {},
		poll:  func() {},
		heard: func(word string) {
			if message, whole := parts.add(word); whole {
				heard(message)
			}
		},
	})
}

// assembly assembles a message. Its parts come in order and without gaps, since they belong to one
// transaction.
type assembly struct {
	id   string
	text strings.Builder
}

func (a *assembly) add(word string) (message string, whole bool) {
	id, rest, _ := strings.Cut(word, " ")
	at := strings.IndexAny(rest, "+.")
	if at < 0 {
		return "", false
	}
	text, ok := decode(rest[at+1:])
	if !ok || rest[:at] != "0" && id != a.id {
		return "", false
	}
	if rest[:at] == "0" || a.text.Len() > maxMessage {
		a.id = id
		a.text.Reset()
	}
	a.text.WriteString(text)
	return a.text.String(), rest[at] == '.'
}
