package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

const guardedPrefix = "/guarded/"

// readRecord is GET /guarded/{resource}. It refuses a request with a token, because only a claim takes one.
func (s *Server) readRecord(w *exchange, r *http.Request) error {
	if len(r.Header[wire.HeaderFencingToken]) > 0 {
		return badField(wire.HeaderFencingToken, "must not be sent with GET, which claims nothing: POST does")
	}
	ctx, end, err := s.guard.begin(r.Context())
	if err != nil {
		return err
	}
	record, err := s.Guard.Read(ctx, w.resource)
	err = end(err)
	if err != nil {
		return err
	}
	return s.answerRecord(w, record)
}

// listRecords is GET /guarded. A cursor is the last resource of a page, which the caller may see anyway.
func (s *Server) listRecords(w *exchange, r *http.Request) error {
	params, err := query(r, recordParameters...)
	if err != nil {
		return err
	}
	limit, err := pageLimit(params)
	if err != nil {
		return err
	}
	prefix, after := params["prefix"], params["cursor"]
	if err := errors.Join(lockcore.ValidateText("prefix", prefix, 0), lockcore.ValidateText("cursor", after, 0)); err != nil {
		return err
	}
	ctx, end, err := s.guard.begin(r.Context())
	if err != nil {
		return err
	}
	records, more, err := readable(ctx, s.Guard, s.mayRead(w), prefix, after, limit)
	err = end(err)
	if err != nil {
		return err
	}
	page := wire.RecordPage{Records: make([]wire.RecordSummary, len(records))}
	for i, record := range records {
		page.Records[i] = wire.RecordSummary{Resource: record.Resource, HighestToken: int64(record.Mark), Version: record.Version}
	}
	if more {
		page.NextCursor = records[limit-1].Resource
	}
	return s.write(w, http.StatusOK, wire.TypeJSON, page)
}

// readable returns up to limit records that show accepts (nil accepts all), and whether more may follow.
func readable(ctx context.Context, guard fencing.Guard, show func(string) bool, prefix, after string, limit int) (found []fencing.Record, more bool, err error) {
	for {
		records, err := guard.Records(ctx, prefix, after, MaxPage)
		if err != nil {
			return nil, false, err
		}
		for _, record := range records {
			switch after = record.Resource; {
			case show != nil && !show(record.Resource):
			case len(found) == limit:
				return found, true, nil
			default:
				found = append(found, record)
			}
		}
		if len(records) < MaxPage {
			return found, false, nil
		}
	}
}

// attempt is a requested claim of a record, or a requested write to it.
type attempt struct {
	kind     fencing.AttemptKind
	resource string
	token    fencing.Token
	value    []byte // of a write; nil removes the value
}

// changeRecord is POST, PUT and DELETE /guarded/{resource}: a claim, a write, and the removal of the value.
// A claim raises the mark before the holder's first read, so that a read-modify-write under a lock loses no
// change.
func (s *Server) changeRecord(w *exchange, r *http.Request) error {
	a, err := s.attemptOf(w, r)
	if err != nil {
		return err
	}
	ctx, end, err := s.guard.begin(r.Context())
	if err != nil {
		return err
	}
	record, err := s.carryOut(ctx, w.who, a)
	err = end(err)
	if err != nil {
		s.countStale(a.kind, err)
		return err
	}
	return s.answerRecord(w, record)
}

// attemptOf reads the attempt from a request, and checks the token's proof.
func (s *Server) attemptOf(w *exchange, r *http.Request) (a attempt, err error) {
	a.kind, a.resource = fencing.KindWrite, w.resource
	if a.token, err = s.provenToken(r, a.resource); err != nil {
		return a, err
	}
	switch r.Method {
	case http.MethodPut:
		a.value, err = s.value(w, r)
	case http.MethodPost:
		a.kind, err = fencing.KindClaim, noBody(r, "a claim")
	case http.MethodDelete:
		err = noBody(r, "a delete")
	}
	return a, err
}

func (s *Server) provenToken(r *http.Request, resource string) (fencing.Token, error) {
	text, err := header(r, wire.HeaderFencingToken)
	if err != nil {
		return 0, err
	}
	if len(r.Header[wire.HeaderFencingToken]) == 0 {
		return 0, errTokenRequired
	}
	token, err := fencing.ParseToken(text)
	if err != nil {
		return 0, err
	}
	return token, s.checkProof(r, resource, token)
}

func (s *Server) value(w *exchange, r *http.Request) ([]byte, error) {
	buf := s.buffer()
	defer s.recycle(buf)
	if err := readBody(w, r, buf, false); err != nil {
		return nil, err
	}
	return decodeValue(buf.Bytes())
}

func noBody(r *http.Request, what string) error {
	if r.ContentLength != 0 {
		return badField(fieldBody, "must be empty: "+what+" takes none")
	}
	return nil
}

// carryOut makes the attempt within the limits of what the guard keeps.
func (s *Server) carryOut(ctx context.Context, who *access.Identity, a attempt) (fencing.Record, error) {
	bytes := int64(len(a.value))
	if err := s.records.admit(ctx, a.resource, bytes); err != nil {
		return fencing.Record{}, err
	}
	undo, err := s.records.take(who, a.resource, bytes, a.kind)
	if err != nil {
		return fencing.Record{}, err
	}
	record, err := a.on(ctx, s.Guard)
	if errors.Is(err, fencing.ErrStaleToken) { // after any other error, the attempt may have taken effect
		undo()
	}
	return record, err
}

func (a attempt) on(ctx context.Context, guard fencing.Guard) (fencing.Record, error) {
	switch {
	case a.kind == fencing.KindClaim:
		return guard.Claim(ctx, a.resource, a.token)
	case a.value == nil:
		return guard.Delete(ctx, a.resource, a.token)
	}
	return guard.Write(ctx, a.resource, a.token, a.value)
}

// history is GET /history?resource=….
func (s *Server) history(w *exchange, r *http.Request) error {
	params, err := query(r, historyParameters...)
	if err != nil {
		return err
	}
	limit, err := pageLimit(params)
	if err != nil {
		return err
	}
	after, err := parsePosition(params["cursor"])
	if err != nil {
		return err
	}
	ctx, end, err := s.guard.begin(r.Context())
	if err != nil {
		return err
	}
	attempts, err := s.Guard.History(ctx, w.resource, maxAttempts)
	err = end(err)
	if err != nil {
		return err
	}
	return s.write(w, http.StatusOK, wire.TypeJSON, historyPage(w.resource, attempts, after, limit))
}

// maxAttempts is more than any guard keeps for one resource.
const maxAttempts = 1000

// position is the place of an attempt in a history. New attempts are added before it, and the oldest ones
// are dropped behind it.
type position struct {
	at    int64 // Unix time in ns; 0 for the position before the newest attempt
	token fencing.Token
}

func positionOf(a fencing.Attempt) position { return position{at: a.At.UnixNano(), token: a.Token} }

func (p position) String() string { return fmt.Sprintf("%d.%d", p.at, p.token) }

func parsePosition(cursor string) (p position, err error) {
	if cursor == "" {
		return p, nil
	}
	at, token, _ := strings.Cut(cursor, ".")
	p.at, err = strconv.ParseInt(at, 10, 64)
	if err == nil {
		p.token, err = fencing.ParseToken(token)
	}
	if err != nil || p.String() != cursor {
		return p, badField("cursor", "must be the next_cursor of the previous page")
	}
	return p, nil
}

// historyPage returns the page after a position. It is empty if that position was dropped.
func historyPage(resource string, attempts []fencing.Attempt, after position, limit int) wire.HistoryPage {
	if after.at != 0 {
		for len(attempts) > 0 && positionOf(attempts[0]) != after {
			attempts = attempts[1:]
		}
		for len(attempts) > 0 && positionOf(attempts[0]) == after {
			attempts = attempts[1:]
		}
	}
	page := wire.HistoryPage{Resource: resource, Attempts: []wire.Attempt{}}
	for i, a := range attempts {
		if i >= limit && positionOf(a) != positionOf(attempts[i-1]) { // attempts with the same position stay on one page
			page.NextCursor = positionOf(attempts[i-1]).String()
			break
		}
		page.Attempts = append(page.Attempts, wire.Attempt{
			FencingToken: int64(a.Token), HighestToken: int64(a.Highest), Kind: string(a.Kind),
			Accepted: a.Accepted, Version: a.Version, At: a.At.UTC(),
		})
	}
	return page
}

func (s *Server) answerRecord(w *exchange, record fencing.Record) error {
	return s.write(w, http.StatusOK, wire.TypeJSON, wire.Record{
		Resource:     record.Resource,
		HighestToken: int64(record.Mark),
		Value:        orNull(record.Value),
		Version:      record.Version,
	})
}

// countStale counts and publishes an attempt that the guard refused, if err is such a refusal.
func (s *Server) countStale(kind fencing.AttemptKind, err error) {
	stale, ok := errors.AsType[*fencing.StaleTokenError](err)
	if !ok {
		return
	}
	s.leases.metrics.stale[kind].Inc()
	s.leases.activity.Refused(time.Now())
	if !s.Events.Recording() {
		return
	}
	s.Events.Publish(events.Event{Kind: wire.EventStaleToken, Event: wire.Event{
		Resource: stale.Resource, FencingToken: int64(stale.Presented), HighestToken: int64(stale.Highest), Attempt: string(kind),
	}})
}
