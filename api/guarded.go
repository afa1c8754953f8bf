package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

const guardedPrefix = "/guarded/"

// readRecord is GET /guarded/{resource}. It refuses a token, which only a claim takes.
func (s *Server) readRecord(w http.ResponseWriter, r *http.Request) error {
	resource, err := pathResource(r, guardedPrefix)
	if err != nil {
		return err
	}
	if len(r.Header[wire.HeaderFencingToken]) > 0 {
		return badField(wire.HeaderFencingToken, "must not be sent with GET, which claims nothing: POST does")
	}
	return s.withRecord(w, r, "", func(ctx context.Context, guard fencing.Guard) (fencing.Record, error) {
		return guard.Read(ctx, resource)
	})
}

// listRecords is GET /guarded. A cursor is the last resource of a page, which its caller may read.
func (s *Server) listRecords(w http.ResponseWriter, r *http.Request) error {
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
	var records []fencing.Record
	more := false
	err = s.withGuard(r, func(ctx context.Context, guard fencing.Guard) (err error) {
		records, more, err = readable(ctx, guard, s.mayRead(w), prefix, after, limit)
		return err
	})
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

// readable lists records that show accepts, nil for all, and whether more may follow.
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

// claimRecord is POST /guarded/{resource}: it raises the mark before the
// holder's first read, so that a read-modify-write under a lock loses nothing.
func (s *Server) claimRecord(w http.ResponseWriter, r *http.Request) error {
	resource, token, err := s.resourceUnderToken(r)
	if err != nil {
		return err
	}
	if r.ContentLength != 0 {
		return badField(fieldBody, "must be empty: a claim takes none")
	}
	return s.change(w, r, fencing.KindClaim, resource, 0, func(ctx context.Context, guard fencing.Guard) (fencing.Record, error) {
		return guard.Claim(ctx, resource, token)
	})
}

// writeRecord is PUT /guarded/{resource}.
func (s *Server) writeRecord(w http.ResponseWriter, r *http.Request) error {
	resource, token, err := s.resourceUnderToken(r)
	if err != nil {
		return err
	}
	buf := s.buffer()
	defer s.recycle(buf)
	if err := readBody(w, r, buf, false); err != nil {
		return err
	}
	value, err := decodeValue(buf.Bytes())
	if err != nil {
		return err
	}
	return s.change(w, r, fencing.KindWrite, resource, int64(len(value)), func(ctx context.Context, guard fencing.Guard) (fencing.Record, error) {
		return guard.Write(ctx, resource, token, value)
	})
}

// deleteRecord is DELETE /guarded/{resource}: a write of nothing.
func (s *Server) deleteRecord(w http.ResponseWriter, r *http.Request) error {
	resource, token, err := s.resourceUnderToken(r)
	if err != nil {
		return err
	}
	if r.ContentLength != 0 {
		return badField(fieldBody, "must be empty: a delete takes none")
	}
	return s.change(w, r, fencing.KindWrite, resource, 0, func(ctx context.Context, guard fencing.Guard) (fencing.Record, error) {
		return guard.Delete(ctx, resource, token)
	})
}

// change is withRecord within the limits of what the guard keeps: for a claim, or a write of so many bytes.
func (s *Server) change(w http.ResponseWriter, r *http.Request, kind fencing.AttemptKind, resource string, bytes int64, op func(context.Context, fencing.Guard) (fencing.Record, error)) error {
	return s.withRecord(w, r, kind, func(ctx context.Context, guard fencing.Guard) (fencing.Record, error) {
		if err := s.records.admit(ctx, resource, bytes); err != nil {
			return fencing.Record{}, err
		}
		undo, err := s.records.take(callerOf(w), resource, bytes, kind)
		if err != nil {
			return fencing.Record{}, err
		}
		record, err := op(ctx, guard)
		if errors.Is(err, fencing.ErrStaleToken) { // any other failure leaves in doubt whether it took effect
			undo()
		}
		return record, err
	})
}

// resourceUnderToken is the record that the path names, and the request's token for it, whose proof it checks.
func (s *Server) resourceUnderToken(r *http.Request) (resource string, token fencing.Token, err error) {
	resource, err = pathResource(r, guardedPrefix)
	if err != nil {
		return "", 0, err
	}
	text, err := header(r, wire.HeaderFencingToken)
	if err != nil {
		return "", 0, err
	}
	if len(r.Header[wire.HeaderFencingToken]) == 0 {
		return "", 0, errTokenRequired
	}
	token, err = fencing.ParseToken(text)
	if err != nil {
		return "", 0, err
	}
	return resource, token, s.checkProof(r, resource, token)
}

// history is GET /history?resource=….
func (s *Server) history(w http.ResponseWriter, r *http.Request) error {
	params, err := query(r, historyParameters...)
	if err != nil {
		return err
	}
	resource := params["resource"]
	if err := lockcore.ValidateResource(resource); err != nil {
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
	var attempts []fencing.Attempt
	err = s.withGuard(r, func(ctx context.Context, guard fencing.Guard) (err error) {
		attempts, err = guard.History(ctx, resource, maxAttempts)
		return err
	})
	if err != nil {
		return err
	}
	return s.write(w, http.StatusOK, wire.TypeJSON, historyPage(resource, attempts, after, limit))
}

// maxAttempts is more than any guard keeps of a resource.
const maxAttempts = 1000

// position is that of an attempt in a history: newer attempts come before it, and
// the oldest drop out behind it.
type position struct {
	at    int64 // Unix time in ns; 0 for before the newest
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

// historyPage is the page after a position; it is empty once that has dropped out.
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
		if i >= limit && positionOf(a) != positionOf(attempts[i-1]) { // those at one position stay together
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

// withRecord runs op on the guard and answers with the record it returns. kind is
// the attempt's, "" for a read.
func (s *Server) withRecord(w http.ResponseWriter, r *http.Request, kind fencing.AttemptKind, op func(context.Context, fencing.Guard) (fencing.Record, error)) error {
	var record fencing.Record
	err := s.withGuard(r, func(ctx context.Context, guard fencing.Guard) (err error) {
		record, err = op(ctx, guard)
		return err
	})
	if stale, ok := errors.AsType[*fencing.StaleTokenError](err); ok {
		s.countStale(kind, stale)
	}
	if err != nil {
		return err
	}
	return s.write(w, http.StatusOK, wire.TypeJSON, wire.Record{
		Resource:     record.Resource,
		HighestToken: int64(record.Mark),
		Value:        orNull(record.Value),
		Version:      record.Version,
	})
}

// countStale counts and publishes an attempt that the guard refused.
func (s *Server) countStale(kind fencing.AttemptKind, stale *fencing.StaleTokenError) {
	s.leases.metrics.stale[kind].Inc()
	s.leases.activity.Refused(time.Now())
	if !s.Events.Recording() {
		return
	}
	s.Events.Publish(events.Event{Kind: wire.EventStaleToken, Event: wire.Event{
		Resource: stale.Resource, FencingToken: int64(stale.Presented), HighestToken: int64(stale.Highest), Attempt: string(kind),
	}})
}

func (s *Server) withGuard(r *http.Request, op func(context.Context, fencing.Guard) error) error {
	if s.Guard == nil {
		return errNoGuard
	}
	return s.guard.call(r.Context(), op)
}
