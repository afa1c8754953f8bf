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

	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// The pace of a stream.
const (
	heartbeat    = 10 * time.Second // a comment, so that a dead connection is noticed by either side
	streamWrite  = 10 * time.Second // for a reader to take what it is sent
	streamRetry  = time.Second      // after which a reader comes back
	streamBatch  = 256
	maxRecent    = 1000
	maxLastEvent = 64 // bytes of the header
)

// subscription is what a request of GET /events selects.
type subscription struct {
	prefix, resource string
	recent           int
	lastID           string
	mayRead          func(resource string) bool // nil for all
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

// wants says whether the reader gets the event; events of the service itself go to all.
func (l *subscription) wants(e *events.Event) bool {
	if e.Resource == "" {
		return true
	}
	return strings.HasPrefix(e.Resource, l.prefix) && (l.resource == "" || e.Resource == l.resource) && (l.mayRead == nil || l.mayRead(e.Resource))
}

// events is GET /events.
func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	sub, err := subscriptionOf(r, s.mayRead(w))
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		streamHeader(w)
		return nil
	}
	caller := shareholder(w, r)
	if !s.streams.take(caller) {
		return errListenerLimit
	}
	defer s.streams.give(caller)
	reader, err := s.Events.Listen()
	if tooMany := (*events.TooManyError)(nil); errors.As(err, &tooMany) {
		return errTooManyListeners
	}
	defer reader.Close()
	return s.whileAllowed(w, r, anyName, func(w http.ResponseWriter, r *http.Request) error {
		st := &stream{w: w, control: http.NewResponseController(w), reader: reader, sub: sub}
		streamHeader(w)
		st.begin()
		st.run(r.Context())
		return nil
	})
}

func streamHeader(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", wire.TypeEvents)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no") // nginx would keep events back
	w.WriteHeader(http.StatusOK)
}

// stream is a reader of GET /events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	reader  *events.Reader
	sub     subscription
	text    bytes.Buffer
	list    []events.Numbered
}

// begin goes back to where the reader was, or by as many events as it wants.
func (st *stream) begin() {
	fmt.Fprintf(&st.text, "retry: %d\n: events of fencelock\n\n", streamRetry.Milliseconds())
	switch {
	case st.sub.lastID == "":
		st.reader.Rewind(st.sub.recent, st.sub.wants)
	case !st.reader.Resume(st.sub.lastID):
		st.gap("the last event came from another server, or from before a restart; the events that are still kept follow")
	}
}

// run sends until the reader goes away, is too slow, or the server stops.
func (st *stream) run(ctx context.Context) {
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for live := false; ; live = true {
		for more := true; more; {
			var slow bool
			if slow, more = st.fill(); !live && !more && !slow {
				st.text.WriteString(": live\n\n") // what comes from here on happens now
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

// fill appends the events that there are. A reader that fell behind so far that events
// were lost gets a gap, and is cut off: it may come back.
func (st *stream) fill() (slow, more bool) {
	var missed uint64
	st.list, missed, more = st.reader.Next(st.list[:0], streamBatch, st.sub.wants)
	if missed > 0 {
		slow = st.sub.lastID == ""
		st.gap("the reader was too slow, or disconnected for too long")
	}
	st.sub.lastID = "" // only the first gap may be of a reader that was disconnected
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

// event appends one event to the text. JSON has no line breaks, which would end it.
func (st *stream) event(id string, e *events.Event) {
	e.At = e.At.UTC().Truncate(time.Millisecond)
	data, err := json.Marshal(e.Event)
	if err != nil {
		return // cannot be: it is made of texts and numbers
	}
	if id != "" {
		fmt.Fprintf(&st.text, "id: %s\n", id)
	}
	fmt.Fprintf(&st.text, "event: %s\ndata: %s\n\n", e.Kind, data)
}

// send writes the text, and reports whether the reader still takes it.
func (st *stream) send() bool {
	if st.text.Len() == 0 {
		return true
	}
	_ = st.control.SetWriteDeadline(time.Now().Add(streamWrite)) // in place of the server's, which a stream outlives
	_, err := st.w.Write(st.text.Bytes())
	st.text.Reset()
	return err == nil && st.control.Flush() == nil
}
