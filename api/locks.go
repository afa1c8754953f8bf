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
	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// acquire is POST /locks.
func (s *Server) acquire(w *exchange, r *http.Request) error {
	req, err := s.acquireRequest(w, r)
	if err != nil {
		return err
	}
	if req.Wait == 0 {
		return s.grant(w, r, &req)
	}
	if w.part != nil {
		return badField("wait_ms", "must be 0 in a batch: send a request that waits by itself")
	}
	waits := req // a copy for the closure, so that req itself stays on the stack
	return s.whileAllowed(w, r, func(who *access.Identity) error { return mayAcquire(who, &waits) }, func(w *exchange, r *http.Request) error {
		return s.grant(w, r, &waits)
	})
}

// grant acquires and sends the lease.
func (s *Server) grant(w *exchange, r *http.Request, req *lockcore.Request) error {
	lease, err := s.take(w, r, req)
	if left := edge.Gone(r); left != nil {
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
	} else if w.part != nil {
		s.undelivered(w, r, *req, lease)
	}
	return err
}

// take acquires, until the caller hangs up.
func (s *Server) take(w *exchange, r *http.Request, req *lockcore.Request) (lockcore.Lease, error) {
	ctx := r.Context()
	if req.Wait > 0 {
		defer w.expense.pause()()
		var stop func()
		ctx, stop = edge.UntilHangUp(ctx, r, watchAfter)
		defer stop()
	}
	return s.leases.Acquire(ctx, w.who, req)
}

// acquireRequest decodes and checks a request, once and completely. The caller needs the right acquire over
// each resource.
func (s *Server) acquireRequest(w *exchange, r *http.Request) (req lockcore.Request, err error) {
	buf := s.buffer()
	defer s.recycle(buf)
	if err := readBody(w, r, buf, false); err != nil {
		return req, err
	}
	req, namesWait, err := decodeAcquire(buf.Bytes())
	if err != nil {
		return req, err
	}
	req.Caller = w.caller
	if req.IdempotencyKey, err = idempotencyKey(r); err != nil {
		return req, err
	}
	applied, err := preferWait(&req, r, namesWait)
	if err != nil {
		return req, err
	}
	if err := s.Service.Limits().Check(&req); err != nil {
		return req, err
	}
	if s.Access != nil {
		if err := mayAcquire(w.who, &req); err != nil {
			return req, err
		}
	}
	if applied != "" {
		w.Header().Set(wire.HeaderPreferenceApplied, applied)
	}
	return req, nil
}

// cancel is POST /cancel.
func (s *Server) cancel(w *exchange, r *http.Request) error {
	req, err := s.acquireRequest(w, r)
	if err != nil {
		return err
	}
	if err := s.leases.Cancel(r.Context(), w.who, &req); err != nil {
		return err
	}
	return noContent(w)
}

// preferWait applies the wait that the Prefer header asks for: as the wait if there is no wait_ms, or as
// the limit of this poll if there is an idempotency key. It returns the preference that it applied, "" for
// none.
func preferWait(req *lockcore.Request, r *http.Request, namesWait bool) (applied string, err error) {
	wait, preferred, err := preferredWait(r)
	switch {
	case err != nil || !preferred:
		return "", err
	case !namesWait:
		req.Wait = wait
	case req.IdempotencyKey != "" && 0 < wait && wait < req.Wait:
		req.Poll = wait
	default:
		return "", nil
	}
	return "wait=" + strconv.FormatInt(int64(wait/time.Second), 10), nil
}

// deliver writes a grant and flushes it, so that a failure shows while the lease can still be released.
func (s *Server) deliver(w *exchange, lease lockcore.Lease) error {
	if err := s.writeGrant(w, lease); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

func (s *Server) writeGrant(w *exchange, lease lockcore.Lease) error {
	status := http.StatusCreated
	if lease.Existing {
		status = http.StatusOK
	}
	body := leaseBody(lease)
	s.prove(body)
	h := w.Header()
	h["Location"] = ofThisLease // together with Fencelock-Lease. A URL with the lease id would be a secret
	setToken(h, lease)
	return s.write(w, status, wire.TypeJSON, body)
}

// setToken sets the header with the token, for a lease of one resource.
func setToken(h http.Header, lease lockcore.Lease) {
	if lease.Token.Valid() {
		h.Set(wire.HeaderFencingToken, lease.Token.String())
	}
}

// releaseUnread releases a grant that its caller cannot read any more. A grant under an idempotency key
// stays, because a retry may have found the same lease.
func (s *Server) releaseUnread(w *exchange, r *http.Request, req *lockcore.Request, lease lockcore.Lease) {
	if req.IdempotencyKey != "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), releaseTimeout)
	defer cancel()
	if _, err := s.leases.Release(ctx, named{caller: w.caller, id: lease.ID}); err != nil && !errors.Is(err, lockcore.ErrNotHeld) {
		s.Logger.LogAttrs(ctx, slog.LevelWarn, "a grant could not be released after its caller hung up; it ends with its TTL",
			slog.String("resource", resourcesOf(lease)), slog.Any("error", err))
	}
}

// resourcesOf returns the names of the lease's resources, for the log.
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
func (s *Server) lease(w *exchange, r *http.Request) error {
	opened, err := w.lease.open(r.Context(), s.Service)
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
func (s *Server) extend(w *exchange, r *http.Request) error {
	buf := s.buffer()
	defer s.recycle(buf)
	if err := readBody(w, r, buf, true); err != nil {
		return err
	}
	ttl, err := decodeExtend(buf.Bytes(), s.Service.Limits())
	if err != nil {
		return err
	}
	extended, err := s.leases.Extend(r.Context(), w.who, w.lease, ttl)
	if err != nil {
		return err
	}
	return s.writeLease(w, extended)
}

// release is DELETE /leases/current.
func (s *Server) release(w *exchange, r *http.Request) error {
	taken, err := s.leases.Release(r.Context(), w.lease)
	switch {
	case err != nil:
		return err
	case taken > 0:
		return s.write(w, http.StatusOK, wire.TypeJSON, wire.Released{TakenForMS: millisUp(taken)})
	}
	return noContent(w)
}

// inspect is GET /locks/{resource}.
func (s *Server) inspect(w *exchange, r *http.Request) error {
	state, err := s.Service.Inspect(r.Context(), w.resource)
	if err != nil {
		return err
	}
	return s.write(w, http.StatusOK, wire.TypeJSON, lockBody(state))
}

// list is GET /locks.
func (s *Server) list(w *exchange, r *http.Request) error {
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
	if len(cursor) > maxCursorBytes || !visible(cursor) {
		return badField("cursor", "must be the next_cursor of the previous page")
	}
	page, err := s.search(r.Context(), text, lockcore.ListRequest{Caller: w.caller, Prefix: prefix, Limit: limit, Cursor: cursor, Show: s.mayRead(w)})
	if err != nil {
		return err
	}
	body := wire.LockPage{Locks: make([]wire.Lock, 0, len(page.Locks)), NextCursor: page.NextCursor}
	for _, state := range page.Locks {
		body.Locks = append(body.Locks, lockBody(state))
	}
	return s.write(w, http.StatusOK, wire.TypeJSON, body)
}

func (s *Server) writeLease(w *exchange, lease lockcore.Lease) error {
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

// prove adds the proofs to a lease. Its tokens are genuine: either the nodes granted them just now, or they
// come from a lease id that this cluster sealed.
func (s *Server) prove(lease *wire.Lease) {
	keys := s.proofKeys()
	if keys == nil {
		return
	}
	if lease.FencingToken != 0 {
		lease.FencingProof = keys.Prove(lease.Resource, fencing.Token(lease.FencingToken))
	}
	for i := range lease.Resources {
		part := &lease.Resources[i]
		part.FencingProof = keys.Prove(part.Resource, fencing.Token(part.FencingToken))
	}
}

func (s *Server) proofKeys() *fencing.ProofKeys {
	if s.Proofs == nil {
		return nil
	}
	return s.Proofs()
}

// checkProof checks the proof of a token that is presented to a guarded record, if one is required. The
// error is a *fencing.ProofError or a *lockcore.FieldError.
func (s *Server) checkProof(r *http.Request, resource string, token fencing.Token) error {
	if !s.ProofRequired {
		return nil
	}
	proof, err := header(r, wire.HeaderFencingProof)
	if err != nil {
		return err
	}
	keys := s.proofKeys()
	if keys == nil {
		return &fencing.ProofError{Resource: resource, Presented: token, Missing: proof == ""}
	}
	return keys.Verify(resource, token, proof)
}
