package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

const (
	guardedPrefix = "/guarded/"
	historySuffix = "/history"
)

// writeRecord is PUT /guarded/{resource}.
func (s *Server) writeRecord(w http.ResponseWriter, r *http.Request) error {
	resource, history, err := guardedPath(r)
	if err != nil {
		return err
	}
	if history {
		return refuseMethod(w, http.MethodGet, http.MethodHead)
	}
	token, err := fencingToken(r)
	if err != nil {
		return err
	}
	if token == 0 {
		return errTokenRequired
	}
	if err := s.checkProof(r, resource, token); err != nil {
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
	return s.withRecord(w, r, fencing.KindWrite, func(ctx context.Context, guard fencing.Guard) (fencing.Record, error) {
		return guard.Write(ctx, resource, token, value)
	})
}

// readRecord is GET /guarded/{resource} and GET /guarded/{resource}/history.
// With a token it claims before it reads, so that a read-modify-write under a
// lock loses nothing; without, it only reads.
func (s *Server) readRecord(w http.ResponseWriter, r *http.Request) error {
	resource, history, err := guardedPath(r)
	if err != nil {
		return err
	}
	if history {
		return s.history(w, r, resource)
	}
	token, err := fencingToken(r)
	if err != nil {
		return err
	}
	if token != 0 {
		if err := s.checkProof(r, resource, token); err != nil {
			return err
		}
	}
	return s.withRecord(w, r, fencing.KindClaim, func(ctx context.Context, guard fencing.Guard) (fencing.Record, error) {
		if token == 0 {
			return guard.Read(ctx, resource)
		}
		return guard.Claim(ctx, resource, token)
	})
}

func (s *Server) history(w http.ResponseWriter, r *http.Request, resource string) error {
	params, err := query(r, "limit")
	if err != nil {
		return err
	}
	limit, err := pageLimit(params)
	if err != nil {
		return err
	}
	var attempts []fencing.Attempt
	err = s.withGuard(r, func(ctx context.Context, guard fencing.Guard) (err error) {
		attempts, err = guard.History(ctx, resource, limit)
		return err
	})
	if err != nil {
		return err
	}
	body := wire.History{Resource: resource, Attempts: make([]wire.Attempt, len(attempts))}
	for i, a := range attempts {
		body.Attempts[i] = wire.Attempt{
			FencingToken: int64(a.Token),
			Highest:      int64(a.Highest),
			Kind:         string(a.Kind),
			Accepted:     a.Accepted,
			Version:      a.Version,
			At:           a.At.UTC(),
		}
	}
	return s.write(w, http.StatusOK, wire.TypeJSON, body)
}

// guardedPath tells the record's resource, and whether its history is meant.
func guardedPath(r *http.Request) (resource string, history bool, err error) {
	escaped, history := strings.CutSuffix(strings.TrimPrefix(r.URL.EscapedPath(), guardedPrefix), historySuffix)
	resource, err = parseResource(escaped)
	return resource, history, err
}

// withRecord runs op on the guard and answers with the record it returns. kind
// names the attempt if op presents a token.
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
	w.Header().Set(wire.HeaderFencingToken, record.Mark.String())
	return s.write(w, http.StatusOK, wire.TypeJSON, wire.Record{
		Resource:     record.Resource,
		FencingToken: int64(record.Mark),
		Value:        orNull(record.Value),
		Version:      record.Version,
	})
}

// countStale counts and publishes an attempt that the guard refused.
func (s *Server) countStale(kind fencing.AttemptKind, stale *fencing.StaleTokenError) {
	s.leases.metrics.stale[kind].Inc()
	if !s.Events.Recording() {
		return
	}
	s.Events.Publish(events.Event{Kind: wire.EventStaleToken, Event: wire.Event{
		Resource: stale.Resource, FencingToken: int64(stale.Presented), Highest: int64(stale.Highest), Attempt: string(kind),
	}})
}

// withGuard runs op under a time limit of its own, since a storage that hangs
// is as far away as one that refuses connections.
func (s *Server) withGuard(r *http.Request, op func(context.Context, fencing.Guard) error) error {
	if s.Guard == nil {
		return errNoGuard
	}
	ctx, cancel := context.WithTimeout(r.Context(), guardTimeout)
	defer cancel()
	err := op(ctx, s.Guard)
	if errors.Is(err, context.DeadlineExceeded) && r.Context().Err() == nil {
		return fmt.Errorf("%w: no answer within %s: %w", fencing.ErrGuardUnavailable, guardTimeout, err)
	}
	return err
}
