package zkstore

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/internal/pause"
)

const (
	// partBytes is the maximum part of a message in one znode.
	partBytes = 900_000
	// messageLife is the minimum time for which the parts of a message are kept for its readers.
	messageLife = 10 * time.Second
	hearPause   = 100 * time.Millisecond
	partName    = "part-" // and a number that ZooKeeper gives
	idBytes     = 26
	maxParts    = 100 // maximum number of incomplete messages
)

// told lists the parts of messages that this server has sent, oldest first.
type told struct {
	mu    sync.Mutex
	parts []toldPart
}

type toldPart struct {
	path string
	at   time.Time
}

func (s *service) topic(name string) string {
	return s.path(topicsName, base64.RawURLEncoding.EncodeToString([]byte(name)))
}

// Tell sends a message to all servers that are listening to the topic. Its znodes end with this server's
// session; Tell also deletes those of old messages.
func (s *Store) Tell(ctx context.Context, topic, message string) error {
	id := rand.Text()
	for first := true; first || message != ""; first = false {
		n := min(len(message), partBytes)
		end := "."
		if n < len(message) {
			end = "+"
		}
		if err := s.tell(ctx, s.service.topic(topic), id+end+message[:n]); err != nil {
			return err
		}
		message = message[n:]
	}
	return s.forgetOld(ctx)
}

func (s *Store) tell(ctx context.Context, topic, part string) error {
	path, err := call(ctx, s.service.session, func(c *zk.Conn) (string, error) {
		path := topic + "/" + partName
		made, err := c.Create(path, []byte(part), zk.FlagEphemeral|zk.FlagSequence, s.service.acl)
		if !errors.Is(err, zk.ErrNoNode) {
			return made, err
		}
		if _, err := c.Create(topic, nil, zk.FlagPersistent, s.service.acl); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return "", err
		}
		return c.Create(path, []byte(part), zk.FlagEphemeral|zk.FlagSequence, s.service.acl)
	})
	if err == nil {
		s.told.mu.Lock()
		defer s.told.mu.Unlock()
		s.told.parts = append(s.told.parts, toldPart{path, time.Now()})
	}
	return err
}

func (s *Store) forgetOld(ctx context.Context) (err error) {
	s.told.mu.Lock()
	n := 0
	for n < len(s.told.parts) && time.Since(s.told.parts[n].at) > messageLife {
		n++
	}
	old := s.told.parts[:n]
	s.told.parts = s.told.parts[n:]
	s.told.mu.Unlock()
	for _, part := range old {
		err = errors.Join(err, s.service.remove(ctx, part.path))
	}
	return err
}

// Hear calls heard for every message of a topic until ctx ends. Messages that are sent while
// no server can be reached may be lost.
func (s *Store) Hear(ctx context.Context, topic string, heard func(message string)) {
	h := hearing{service: s.service, topic: s.service.topic(topic), parts: make(map[string]string), heard: heard}
	for ctx.Err() == nil {
		news, err := h.hear(ctx)
		if err != nil {
			pause.For(ctx, hearPause)
			continue
		}
		select {
		case <-news:
		case <-ctx.Done():
		}
	}
}

type hearing struct {
	service *service
	topic   string
	begun   bool
	last    string            // the newest part that exists
	parts   map[string]string // parts of incomplete messages, by message id
	heard   func(message string)
}

// hear handles the messages since the last call, and returns the channel that reports more. The first call
// only records what exists.
func (h *hearing) hear(ctx context.Context) (<-chan zk.Event, error) {
	w, err := call(ctx, h.service.session, func(c *zk.Conn) (w watched[[]string], err error) {
		w.value, _, w.event, err = c.ChildrenW(h.topic)
		if errors.Is(err, zk.ErrNoNode) {
			h.last = ""
			_, err = c.Create(h.topic, nil, zk.FlagPersistent, h.service.acl)
			if err == nil || errors.Is(err, zk.ErrNodeExists) {
				w.value, _, w.event, err = c.ChildrenW(h.topic)
			}
		}
		return w, err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(w.value)
	for _, name := range w.value {
		if name <= h.last {
			continue
		}
		if h.begun {
			if err := h.take(ctx, name); err != nil {
				return nil, err
			}
		}
		h.last = name
	}
	h.begun = true
	return w.event, nil
}

func (h *hearing) take(ctx context.Context, name string) error {
	raw, err := h.service.data(ctx, h.topic+"/"+name)
	if err != nil || len(raw) <= idBytes {
		return err
	}
	id, end, part := string(raw[:idBytes]), raw[idBytes], string(raw[idBytes+1:])
	message := h.parts[id] + part
	if end == '+' {
		if len(h.parts) == maxParts { // the rest of these messages is lost
			clear(h.parts)
		}
		h.parts[id] = message
		return nil
	}
	delete(h.parts, id)
	h.heard(message)
	return nil
}
