package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// acquire is POST /locks.
func (s *Server) acquire(w http.ResponseWriter, r *http.Request) error {
	req, err := s.acquireRequest(w, r)
	if err != nil {
		return err
	}
	if req.Wait == 0 {
		return s.grant(w, r, &req)
	}
	if partOf(r) != nil {
		return badField("wait_ms", "must be 0 in a batch: send a request that waits by itself")
	}
	waits := req // on the heap, since the closure keeps it; req is not
	return s.whileAllowed(w, r, waits.allowed, func(w http.ResponseWriter, r *http.Request) error {
		return s.grant(w, r, &waits)
	})
}

// grant acquires and answers.
func (s *Server) grant(w http.ResponseWriter, r *http.Request, req *acquisition) error {
	lease, err := s.take(r, callerOf(w), req)
	if left := gone(r); left != nil {
		if err == nil {
			s.releaseUnread(w, r, req, lease)
		}
		return left
	}
	if err != nil {
		return err
	}
	err = s.deliver(w, lease)
	if err != nil {
		s.releaseUnread(w, r, req, lease)
	} else if part := partOf(r); part != nil {
		s.undelivered(part, w, r, *req, lease)
	}
	return err
}

// take acquires until the caller hangs up.
func (s *Server) take(r *http.Request, who *access.Identity, req *acquisition) (lockcore.Lease, error) {
	ctx := r.Context()
	if req.Wait > 0 {
		var stop func()
		ctx, stop = untilHangUp(ctx, r)
		defer stop()
	}
	return s.leases.Acquire(ctx, who, &req.AcquireRequest)
}

func (s *Server) acquireRequest(w http.ResponseWriter, r *http.Request) (acquisition, error) {
	buf := s.buffer()
	defer s.recycle(buf)
	if err := readBody(w, r, buf, false); err != nil {
		return acquisition{}, err
	}
	req, err := decodeAcquire(buf.Bytes(), s.Service.Limits())
	if err != nil {
		return acquisition{}, err
	}
	if s.Access != nil {
		if err := req.allowed(callerOf(w)); err != nil {
			return acquisition{}, err
		}
	}
	if req.IdempotencyKey, err = idempotencyKey(r); err != nil {
		return acquisition{}, err
	}
	err = req.prefer(w, r)
	return req, err
}

// cancel is POST /cancel.
func (s *Server) cancel(w http.ResponseWriter, r *http.Request) error {
	req, err := s.acquireRequest(w, r)
	if err != nil {
		return err
	}
	if err := s.leases.Cancel(r.Context(), callerOf(w), &req.AcquireRequest); err != nil {
		return err
	}
	return noContent(w)
}

// prefer applies what the request prefers to wait: for lack of a wait_ms, or as the
// bound of this request of several under an idempotency key.
func (req *acquisition) prefer(w http.ResponseWriter, r *http.Request) error {
	wait, preferred, err := preferredWait(r)
	switch {
	case err != nil:
		return err
	case !preferred:
		return nil
	case !req.namesWait:
		req.Wait = wait
	case req.IdempotencyKey != "" && 0 < wait && wait < req.Wait:
		req.Poll = wait
	default:
		return nil
	}
	w.Header().Set(wire.HeaderPreferenceApplied, "wait="+strconv.FormatInt(int64(wait/time.Second), 10))
	return nil
}

// deliver writes a grant to the connection, so that a failure shows while the lease
// can still be released.
func (s *Server) deliver(w http.ResponseWriter, lease lockcore.Lease) error {
	if err := s.writeGrant(w, lease); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

func (s *Server) writeGrant(w http.ResponseWriter, lease lockcore.Lease) error {
	status := http.StatusCreated
	if lease.Existing {
		status = http.StatusOK
	}
	body := leaseBody(lease)
	s.prove(body)
	h := w.Header()
	h["Location"] = ofThisLease // with Fencelock-Lease: a URL with the lease id would be a secret
	setToken(h, lease)
	return s.write(w, status, wire.TypeJSON, body)
}

// setToken sends the token of a lease of one resource.
func setToken(h http.Header, lease lockcore.Lease) {
	if lease.Token.Valid() {
		h.Set(wire.HeaderFencingToken, lease.Token.String())
	}
}

// releaseUnread releases a grant that its caller cannot read any more. One under an
// idempotency key stays: a retry may have found the same lease.
func (s *Server) releaseUnread(w http.ResponseWriter, r *http.Request, req *acquisition, lease lockcore.Lease) {
	if req.IdempotencyKey != "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), releaseTimeout)
	defer cancel()
	if _, err := s.leases.Release(ctx, callerOf(w), named{id: lease.ID}); err != nil && !errors.Is(err, lockcore.ErrNotHeld) {
		s.Logger.LogAttrs(ctx, slog.LevelWarn, "a grant could not be released after its caller hung up; it ends with its TTL",
			slog.String("resource", resourcesOf(lease)), slog.Any("error", err))
	}
}

// resourcesOf names the lease's resources, for the log.
func resourcesOf(lease lockcore.Lease) string {
	if len(lease.Parts) == 0 {
		return lease.Resource
	}
	names := make([]string, len(lease.Parts))
	for i, part := range lease.Parts {
		names[i] = part.Resource
	}
	return strings.Join(names, ", ")
}

// lease is GET /leases/current.
func (s *Server) lease(w http.ResponseWriter, r *http.Request) error {
	lease, err := namedLease(w, r)
	if err != nil {
		return err
	}
	opened, err := lease.open(onBehalfOf(r.Context(), callerOf(w)), s.Service)
	if err != nil {
		return err
	}
	now, err := opened.Now(r.Context())
	if err != nil {
		return err
	}
	return s.writeLease(w, now)
}

// extend is POST /leases/current/extend.
func (s *Server) extend(w http.ResponseWriter, r *http.Request) error {
	lease, err := namedLease(w, r)
	if err != nil {
		return err
	}
	buf := s.buffer()
	defer s.recycle(buf)
	if err := readBody(w, r, buf, true); err != nil {
		return err
	}
	ttl, err := decodeExtend(buf.Bytes(), s.Service.Limits())
	if err != nil {
		return err
	}
	extended, err := s.leases.Extend(r.Context(), callerOf(w), lease, ttl)
	if err != nil {
		return err
	}
	return s.writeLease(w, extended)
}

// release is DELETE /leases/current.
func (s *Server) release(w http.ResponseWriter, r *http.Request) error {
	lease, err := namedLease(w, r)
	if err != nil {
		return err
	}
	taken, err := s.leases.Release(r.Context(), callerOf(w), lease)
	switch {
	case err != nil:
		return err
	case taken > 0:
		return s.write(w, http.StatusOK, wire.TypeJSON, wire.Released{TakenForMS: millisUp(taken)})
	}
	return noContent(w)
}

// inspect is GET /locks/{resource}.
func (s *Server) inspect(w http.ResponseWriter, r *http.Request) error {
	resource, err := pathResource(r, "/locks/")
	if err != nil {
		return err
	}
	state, err := s.Service.Inspect(r.Context(), resource)
	if err != nil {
		return err
	}
	return s.write(w, http.StatusOK, wire.TypeJSON, lockBody(state))
}

// list is GET /locks.
func (s *Server) list(w http.ResponseWriter, r *http.Request) error {
	params, err := query(r, listParameters...)
	if err != nil {
		return err
	}
	limit, err := pageLimit(params)
	if err != nil {
		return err
	}
	prefix, text, cursor := params["prefix"], params["search"], params["cursor"]
	if err := errors.Join(lockcore.ValidateText("prefix", prefix, 0), lockcore.ValidateText("search", text, 0)); err != nil {
		return err
	}
	if len(cursor) > MaxCursorBytes || !visible(cursor) {
		return badField("cursor", "must be the next_cursor of the previous page")
	}
	page, err := s.search(asCaller(w, r), text, lockcore.ListRequest{Prefix: prefix, Limit: limit, Cursor: cursor, Show: s.mayRead(w)})
	if err != nil {
		return err
	}
	body := wire.LockPage{Locks: make([]wire.Lock, 0, len(page.Locks)), NextCursor: page.NextCursor}
	for _, state := range page.Locks {
		body.Locks = append(body.Locks, lockBody(state))
	}
	return s.write(w, http.StatusOK, wire.TypeJSON, body)
}

func (s *Server) writeLease(w http.ResponseWriter, lease lockcore.Lease) error {
	body := leaseBody(lease)
	s.prove(body)
	setToken(w.Header(), lease)
	return s.write(w, http.StatusOK, wire.TypeJSON, body)
}

func leaseBody(l lockcore.Lease) *wire.Lease {
	body := &wire.Lease{
		Kind:         wire.KindLease,
		Resource:     l.Resource,
		LeaseID:      l.ID,
		FencingToken: int64(l.Token),
		TTLMS:        millisDown(l.TTL),
		ValidityMS:   millisDown(l.Validity),
		WaitedMS:     millisDown(l.Waited),
		Holder:       l.Holder,
		Metadata:     orNull(l.Metadata),
	}
	_, body.Slot = lockcore.SlotOf(l.Resource)
	for _, part := range l.Parts {
		body.Kind = wire.KindBundle
		body.Resources = append(body.Resources, wire.LeasePart{Resource: part.Resource, FencingToken: int64(part.Token)})
	}
	if l.MaxHoldRemaining >= 0 {
		left := millisDown(l.MaxHoldRemaining)
		body.MaxHoldRemainingMS = &left
	}
	return body
}

func lockBody(l lockcore.LockState) wire.Lock {
	body := wire.Lock{
		Resource: l.Resource,
		Held:     l.Held,
		Waiters:  l.Waiting,
		Queue:    make([]wire.Waiter, len(l.Waiters)),
	}
	for i, waiter := range l.Waiters {
		body.Queue[i] = wire.Waiter{Holder: waiter.Holder, WaitingMS: millisDown(waiter.WaitingFor)}
	}
	if l.Held {
		remaining, ttl, held := millisUp(l.Remaining), millisDown(l.TTL), millisDown(l.HeldFor)
		body.Holder = &l.Holder
		body.FencingToken = int64(l.Token)
		body.RemainingMS = &remaining
		body.TTLMS = &ttl
		body.HeldMS = &held
		body.Metadata = orNull(l.Metadata)
	}
	return body
}

func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}
