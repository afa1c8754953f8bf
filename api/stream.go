package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// The times of a stream.
const (
	heartbeat    = 10 * time.Second // how often a comment is sent, so that both sides notice a dead connection
	streamWrite  = 10 * time.Second // how long a reader may take to read what was sent
	streamRetry  = time.Second      // how long a reader waits before it reconnects
	streamBatch  = 256
	maxRecent    = 1000
	maxLastEvent = 64 // bytes of the header
)

// subscription is what a request of GET /events selects.
type subscription struct {
	prefix, resource string
	recent           int
	lastID           string
	mayRead          func(resource string) bool // nil permits all
}

func subscriptionOf(r *http.Request, mayRead func(resource string) bool) (subscription, error) {
	params, err := query(r, eventParameters...)
	if err != nil {
		return subscription{}, err
	}
	l := subscription{prefix: params["prefix"], resource: params["resource"], mayRead: mayRead}
	if text, ok := params["recent"]; ok {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil || n > maxRecent {
			return l, badField("recent", fmt.Sprintf("must be a whole number from 0 to %d", maxRecent))
		}
		l.recent = int(n)
	}
	if l.lastID, err = header(r, http.CanonicalHeaderKey(wire.HeaderLastEventID)); err == nil && len(l.lastID) > maxLastEvent {
		err = badField(wire.HeaderLastEventID, "must be the id of an event of this service")
	}
	return l, errors.Join(err,
		lockcore.ValidateText("prefix", l.prefix, 0),
		lockcore.ValidateText("resource", l.resource, 0))
}

// wants reports whether the reader gets the event. Every reader gets events of the service itself.
func (l *subscription) wants(e *events.Event) bool {
	if e.Resource == "" {
		return true
	}
	return strings.HasPrefix(e.Resource, l.prefix) && (l.resource == "" || e.Resource == l.resource) && (l.mayRead == nil || l.mayRead(e.Resource))
}

// events is GET /events.
func (s *Server) events(w *exchange, r *http.Request) error {
	sub, err := subscriptionOf(r, s.mayRead(w))
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		streamHeader(w)
		return nil
	}
	reader, err := s.Events.Listen(shareholder(w, r), w.who == nil || w.who.MayAll(access.Admin))
	if err != nil {
		return err
	}
	defer reader.Close()
	return s.whileAllowed(w, r, anyName, func(w *exchange, r *http.Request) error {
		st := &stream{w: w, control: http.NewResponseController(w), reader: reader, sub: sub}
		streamHeader(w)
		st.begin()
		st.run(r.Context())
		return nil
	})
}

func streamHeader(w *exchange) {
	h := w.Header()
	h.Set("Content-Type", wire.TypeEvents)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no") // otherwise nginx buffers events
	w.WriteHeader(http.StatusOK)
}

// stream is one reader of GET /events.
type stream struct {
	w       *exchange
	control *http.ResponseController
	reader  *events.Reader
	sub     subscription
	text    bytes.Buffer
	list    []events.Numbered
}

// begin resumes where the reader was, or goes back by the number of events that it requests.
func (st *stream) begin() {
	fmt.Fprintf(&st.text, "retry: %d\n: events of fencelock\n\n", streamRetry.Milliseconds())
	switch {
	case st.sub.lastID == "":
		st.reader.Rewind(st.sub.recent, st.sub.wants)
	case !st.reader.Resume(st.sub.lastID):
		st.gap("the last event came from another server, or from before a restart; the events that are still kept follow")
	}
}

// run sends events until the reader disconnects, is too slow, or the server stops.
func (st *stream) run(ctx context.Context) {
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for live := false; ; live = true {
		for more := true; more; {
			var slow bool
			if slow, more = st.fill(); !live && !more && !slow {
				st.text.WriteString(": live\n\n") // events after this line are new
			}
			if !st.send() || slow {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-st.reader.Stopped():
			return
		case <-st.reader.Wake():
		case <-beat.C:
			fmt.Fprintf(&st.text, "id: %s\n: still here\n\n", st.reader.LastID())
		}
	}
}

// fill appends the unread events. A reader that was too slow, so that events were lost, gets a gap and is
// disconnected. It may reconnect.
func (st *stream) fill() (slow, more bool) {
	var missed uint64
	st.list, missed, more = st.reader.Next(st.list[:0], streamBatch, st.sub.wants)
	if missed > 0 {
		slow = st.sub.lastID == ""
		st.gap("the reader was too slow, or disconnected for too long")
	}
	st.sub.lastID = "" // only the first gap may result from a disconnection
	if slow {
		return true, false
	}
	for i := range st.list {
		st.event(st.list[i].ID, &st.list[i].Event)
	}
	return false, more
}

func (st *stream) gap(reason string) {
	st.event("", &events.Event{Kind: wire.EventGap, Event: wire.Event{At: time.Now(), Server: st.reader.Server(), Reason: reason}})
}

// event appends one event to the text. Its JSON contains no line breaks, which would end it.
func (st *stream) event(id string, e *events.Event) {
	e.At = e.At.UTC().Truncate(time.Millisecond)
	data, err := json.Marshal(e.Event)
	if err != nil {
		return // cannot happen: an event has only strings and numbers
	}
	if id != "" {
		fmt.Fprintf(&st.text, "id: %s\n", id)
	}
	fmt.Fprintf(&st.text, "event: %s\ndata: %s\n\n", e.Kind, data)
}

// send writes the text, and reports whether the reader still reads.
func (st *stream) send() bool {
	if st.text.Len() == 0 {
		return true
	}
	_ = st.control.SetWriteDeadline(time.Now().Add(streamWrite)) // replaces the server's deadline, which would end a stream
	_, err := st.w.Write(st.text.Bytes())
	st.text.Reset()
	return err == nil && st.control.Flush() == nil
}
