package zkstore

import (
	"context"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/rowlog"
)

// topics are who hears messages in this process.
type topics struct {
	mu  sync.Mutex
	all []*hearing
}

type hearing struct {
	topic string
	heard func(string)
}

// wakeTopic is the topic of notifications; others begin with anything else.
const wakeTopic = "\x00wake"

// Tell sends a message to all servers that hear the topic now.
func (s *Store) Tell(ctx context.Context, topic, text string) error {
	return s.update(ctx, func(t *tx) error {
		t.messages = append(t.messages, message{topic, text})
		return nil
	})
}

// Hear calls heard for every message of a topic until ctx ends.
func (s *Store) Hear(ctx context.Context, topic string, heard func(text string)) {
	one := &hearing{topic, heard}
	s.topics.mu.Lock()
	s.topics.all = append(s.topics.all, one)
	s.topics.mu.Unlock()
	<-ctx.Done()
	s.topics.mu.Lock()
	defer s.topics.mu.Unlock()
	s.topics.all = slices.DeleteFunc(s.topics.all, func(h *hearing) bool { return h == one })
}

// deliver gives an entry's messages to those of this process whom they are for.
func (s *Store) deliver(messages []message) {
	if len(messages) == 0 {
		return
	}
	s.topics.mu.Lock()
	all := slices.Clone(s.topics.all)
	s.topics.mu.Unlock()
	for _, m := range messages {
		if m.topic == wakeTopic {
			if wake, ok := decodeWake(m.text); ok {
				s.local.Notify([]replica.Wake{wake})
			}
			continue
		}
		for _, h := range all {
			if h.topic == m.topic {
				h.heard(m.text)
			}
		}
	}
}

// encodeWake is a notification: resource, ticket, server and holder, in base64 with blanks
// between.
func encodeWake(w replica.Wake) message {
	parts := []string{w.Resource, w.Ticket.ID, w.Ticket.Server, w.Ticket.Holder}
	for i, part := range parts {
		parts[i] = base64.RawStdEncoding.EncodeToString([]byte(part))
	}
	return message{wakeTopic, strings.Join(parts, " ")}
}

func decodeWake(text string) (w replica.Wake, ok bool) {
	parts := strings.Split(text, " ")
	if len(parts) != 4 {
		return w, false
	}
	for i, part := range parts {
		raw, err := base64.RawStdEncoding.DecodeString(part)
		if err != nil {
			return w, false
		}
		parts[i] = string(raw)
	}
	return replica.Wake{Resource: parts[0], Ticket: node.Ticket{ID: parts[1], Server: parts[2], Holder: parts[3]}}, true
}

// strayAge is when pieces of no entry are left from a server that stopped.
const strayAge = time.Minute

// deleteStrays deletes pieces that no entry has, and entries from before the log began
// again.
func (s *Store) deleteStrays(ctx context.Context) {
	pieces, err := s.children(ctx, s.path("pieces"))
	if err != nil || s.lock(ctx) != nil {
		return
	}
	first := s.mirror.first
	s.mu.Unlock()
	for _, name := range pieces {
		id, _, _ := strings.Cut(name, "-")
		d, err := s.get(ctx, s.path("pieces", name))
		if err == nil && s.stray(id, d.stat) {
			_ = s.remove(ctx, s.path("pieces", name))
		}
	}
	entries, _ := s.children(ctx, s.path("log"))
	for _, name := range entries {
		if number, err := strconv.ParseInt(name, 10, 64); err == nil && number < first {
			_ = s.remove(ctx, s.path("log", name))
		}
	}
}

func (s *Store) stray(id string, stat *zk.Stat) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	low, _ := s.clock.now(0)
	return time.Duration(low-stat.Ctime*1000)*time.Microsecond > strayAge &&
		!slices.ContainsFunc(s.mirror.Entries, func(e rowlog.Entry) bool { return e.ID == id })
}
