package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// Refusals that arise here and not in lockcore or fencing.
var (
	errBodyTooLarge     = fmt.Errorf("the request body is larger than %d bytes", MaxBodyBytes)
	errBodyTimeout      = fmt.Errorf("the request body did not arrive within %s", bodyTimeout)
	errMediaType        = errors.New("the request body must be sent as Content-Type: application/json")
	errTokenRequired    = errors.New("send the token of your lease in the header Fencing-Token")
	errUnknownPath      = errors.New("there is nothing at this path; see /openapi.yaml")
	errMethodNotAllowed = errors.New("the path does not know this method; see the header Allow")
	errLockNotHeld      = errors.New("nobody holds the resource")
	errNoGuard          = errors.New("this server keeps no guarded records: FENCELOCK_DATABASE_URL is not set")
	errTooManyListeners = errors.New("this server streams events to as many readers as it may, or to as many of this caller's")
	errTooManyLists     = fmt.Errorf("this caller has %d listings under way or not read yet, and no caller may have more", maxListsOfCaller)
	errHost             = errors.New("this server does not answer to this host")
	errUnauthorized     = errors.New("the caller is not known")
	errForbidden        = errors.New("the caller's rules do not allow this")
	errInternal         = errors.New("internal error")
)

// problem is a kind of refusal: what an error becomes on the wire. Every kind
// has a page in problems/, served at /problems/{slug}.
type problem struct {
	slug   string
	status int
	title  string
	is     error // what errors.Is finds in the error
	// fill adds what is particular to this kind; nil leaves it at the error's text.
	fill func(a *refusal, err error)
}

// refusal is a problem on its way out.
type refusal struct {
	wire.Problem
	retryAfter time.Duration // 0 for none
}

// problems is the one table from errors to HTTP. The first match counts; the
// last matches everything.
func problems() []problem {
	return []problem{
		{"invalid-request", http.StatusBadRequest, "The request is not valid", errField, fillField},
		{"request-timeout", http.StatusRequestTimeout, "The request body did not arrive in time", errBodyTimeout, nil},
		{"body-too-large", http.StatusRequestEntityTooLarge, "The request body is too large", errBodyTooLarge, nil},
		{"unsupported-media-type", http.StatusUnsupportedMediaType, "The request body is not JSON", errMediaType, nil},
		{"not-found", http.StatusNotFound, "There is nothing at this path", errUnknownPath, nil},
		{"method-not-allowed", http.StatusMethodNotAllowed, "The path does not know this method", errMethodNotAllowed, nil},
		{"lock-held", http.StatusConflict, "The resource is locked", lockcore.ErrHeld, fillHeld},
		{"wait-timeout", http.StatusConflict, "The wait ended before the turn came", lockcore.ErrWaitTimeout, fillWait},
		{"too-many-waiters", http.StatusTooManyRequests, "Too many requests wait in the queue at this server", lockcore.ErrTooManyWaiters, fillRetry},
		{"too-many-listeners", http.StatusTooManyRequests, "Too many readers listen to this server's events", errTooManyListeners, fillRetry},
		{"too-many-lists", http.StatusTooManyRequests, "The caller has as many listings under way as it may", errTooManyLists, fillRetry},
		{"host-not-served", http.StatusMisdirectedRequest, "The server does not answer to this host", errHost, fillHost},
		{"server-stopping", http.StatusServiceUnavailable, "The server is stopping", lockcore.ErrStopping, fillRetry},
		{"lock-not-held", http.StatusNotFound, "The resource is not locked", errLockNotHeld, nil},
		{"lease-not-held", http.StatusNotFound, "The lease has ended", lockcore.ErrNotHeld, fillDetail("the lease has ended, or never was: whoever used it must stop and acquire again")},
		{"max-hold-reached", http.StatusConflict, "The lease was extended for as long as one may be", lockcore.ErrMaxHold, fillDetail("release the lease, or let it end, and acquire again")},
		{"idempotency-mismatch", http.StatusUnprocessableEntity, "The idempotency key was used for another resource", lockcore.ErrIdempotencyMismatch, nil},
		{"tokens-exhausted", http.StatusConflict, "The resource has used up its fencing tokens", lockcore.ErrTokensExhausted, nil},
		{"no-quorum", http.StatusServiceUnavailable, "No quorum of nodes", lockcore.ErrNoQuorum, fillQuorum},
		{"token-required", http.StatusPreconditionRequired, "A fencing token is required", errTokenRequired, nil},
		{"proof-required", http.StatusPreconditionRequired, "A fencing proof is required", fencing.ErrNoProof, fillDetail("send the fence_proof of your lease in the header Fencing-Proof, beside its token")},
		{"proof-refused", http.StatusForbidden, "The fencing proof is refused", fencing.ErrProof, fillProof},
		{"stale-token", http.StatusPreconditionFailed, "The fencing token is stale", fencing.ErrStaleToken, fillStale},
		{"record-not-found", http.StatusNotFound, "There is no such record", fencing.ErrNotFound, fillDetail("the resource was neither written nor claimed")},
		{"guard-unavailable", http.StatusServiceUnavailable, "The guarded storage does not answer", fencing.ErrGuardUnavailable, fillGuardUnavailable},
		{"guard-not-configured", http.StatusNotImplemented, "This server keeps no guarded records", errNoGuard, nil},
		{"unauthorized", http.StatusUnauthorized, "The caller is not known", errUnauthorized, fillUnauthorized},
		{"forbidden", http.StatusForbidden, "The caller may not do this", errForbidden, fillForbidden},
		{"identity-unavailable", http.StatusServiceUnavailable, "The caller's identity cannot be checked now", access.ErrUnavailable, fillIdentityUnavailable},
		{"too-many-requests", http.StatusTooManyRequests, "The caller sends more requests than it may", access.ErrRequestLimit, fillLimit},
		{"waiter-limit", http.StatusTooManyRequests, "The caller has as many requests in the queue as it may", access.ErrWaiterLimit, fillLimit},
		{"lease-limit", http.StatusTooManyRequests, "The caller holds as many leases as it may", access.ErrLeaseLimit, fillLimit},
		{"internal-error", http.StatusInternalServerError, "Internal error", errInternal, fillDetail("the server's log says more, under this response's X-Request-Id")},
	}
}

// errField stands for every *lockcore.FieldError and malformed value, see classify.
var errField = errors.New("invalid field")

// classify finds the error's kind and makes the refusal.
func (s *Server) classify(err error) refusal {
	if asField(err) != nil {
		err = errors.Join(errField, err)
	}
	for _, k := range s.kinds {
		if errors.Is(err, k.is) {
			return k.refuse(err)
		}
	}
	return s.kinds[len(s.kinds)-1].refuse(err)
}

func (k problem) refuse(err error) refusal {
	a := refusal{Problem: wire.Problem{
		Type:   wire.ProblemPrefix + k.slug,
		Title:  k.title,
		Status: k.status,
	}}
	if k.fill == nil {
		a.Detail = k.is.Error()
	} else {
		k.fill(&a, err)
	}
	return a
}

// asField finds the field that an error is about, nil if there is none.
func asField(err error) *lockcore.FieldError {
	var field *lockcore.FieldError
	switch {
	case errors.As(err, &field):
		return field
	case errors.Is(err, fencing.ErrMalformedToken):
		return badField(wire.HeaderFencingToken, fmt.Sprintf("must be a whole number from 1 to %d, in digits alone", fencing.MaxToken))
	case errors.Is(err, fencing.ErrMalformedResource):
		return badField("resource", "is not one that the guard's storage takes")
	case errors.Is(err, fencing.ErrMalformedValue):
		return badField(fieldBody, "is not a JSON value that the guard's storage takes")
	default:
		return nil
	}
}

func badField(field, reason string) *lockcore.FieldError {
	return &lockcore.FieldError{Field: field, Reason: reason}
}

func fillField(a *refusal, err error) {
	field := asField(err)
	a.Field = field.Field
	a.Detail = field.Error()
}

func fillDetail(detail string) func(*refusal, error) {
	return func(a *refusal, _ error) { a.Detail = detail }
}

func fillHeld(a *refusal, err error) {
	var held *lockcore.HeldError
	if !errors.As(err, &held) {
		held = &lockcore.HeldError{}
	}
	a.Detail = "another lease holds the resource, or others are before you in the queue"
	a.holds(held)
}

func fillWait(a *refusal, err error) {
	var timeout *lockcore.WaitTimeoutError
	if !errors.As(err, &timeout) {
		timeout = &lockcore.WaitTimeoutError{}
	}
	a.Detail = "the time to wait was up before it was this request's turn; it is not in the queue any more"
	a.holds(&timeout.HeldError)
	a.WaitDetails = &wire.WaitDetails{Position: timeout.Position, WaitedMS: millisDown(timeout.Waited)}
}

// holds tells who is in the way.
func (a *refusal) holds(held *lockcore.HeldError) {
	a.Resource = held.Resource
	a.HeldDetails = &wire.HeldDetails{
		Holder:       held.Holder,
		FencingToken: int64(held.Token),
		RemainingMS:  millisUp(held.Remaining),
		Waiters:      held.Waiters,
	}
	a.retryAfter = max(held.Remaining, time.Millisecond)
}

// fillRetry leaves it at the error's text, and asks to come back soon.
func fillRetry(a *refusal, err error) {
	a.Detail = err.Error()
	a.retryAfter = soon
}

func fillQuorum(a *refusal, err error) {
	var quorum *lockcore.QuorumError
	if !errors.As(err, &quorum) {
		quorum = &lockcore.QuorumError{}
	}
	a.Detail = fmt.Sprintf("%d of %d nodes agreed, %d are needed", quorum.Granted, len(quorum.Nodes), quorum.Quorum)
	a.Resource = quorum.Resource
	a.QuorumDetails = &wire.QuorumDetails{
		Asked:    len(quorum.Nodes),
		Answered: quorum.Answered,
		Granted:  quorum.Granted,
		Quorum:   quorum.Quorum,
		Nodes:    make([]wire.NodeOutcome, len(quorum.Nodes)),
	}
	for i, n := range quorum.Nodes {
		a.Nodes[i] = wire.NodeOutcome{Node: n.Node, Reason: n.Reason}
	}
	a.retryAfter = max(quorum.RetryAfter, time.Millisecond)
}

func fillStale(a *refusal, err error) {
	var stale *fencing.StaleTokenError
	if !errors.As(err, &stale) {
		stale = &fencing.StaleTokenError{}
	}
	a.Detail = "a larger token was seen: somebody else has held the resource since; stop, and acquire again"
	a.Resource = stale.Resource
	a.StaleDetails = &wire.StaleDetails{Presented: int64(stale.Presented), Highest: int64(stale.Highest)}
}

func fillProof(a *refusal, err error) {
	a.Detail = "the proof does not show that the token was minted for the resource: send both as they stand in the lease"
	if refused, ok := errors.AsType[*fencing.ProofError](err); ok {
		a.Resource = refused.Resource
	}
}

// fillGuardUnavailable leaves the cause to the log: it names hosts and users.
func fillGuardUnavailable(a *refusal, _ error) {
	a.Detail = "the storage of guarded records does not answer; locks go on working. " +
		"A write may have taken effect, and may be repeated with the same token while its lease is held"
	a.retryAfter = soon
}

// fillUnauthorized says the same for every reason: what was nearly right is
// nobody's business.
func fillUnauthorized(a *refusal, _ error) {
	a.Detail = "send Authorization: Bearer with a token that this service knows, or a client certificate; see docs/access.md"
}

func fillForbidden(a *refusal, err error) {
	a.Detail = "the caller's rules do not give the right that this needs"
	if forbidden, ok := errors.AsType[*forbiddenError](err); ok {
		a.Detail = fmt.Sprintf("this needs the right %s, which %s has not got here; whoever keeps the service's access file can give it", forbidden.right, forbidden.who)
		a.Resource = forbidden.resource
	}
}

// fillIdentityUnavailable leaves the cause to the log.
func fillIdentityUnavailable(a *refusal, _ error) {
	a.Detail = access.ErrUnavailable.Error() + "; other credentials go on working"
	a.retryAfter = soon
}

func fillLimit(a *refusal, err error) {
	var limit *access.LimitError
	if !errors.As(err, &limit) {
		limit = &access.LimitError{Limit: errInternal, Retry: soon}
	}
	a.Detail = fmt.Sprintf("%s: %s at this server", limit.Error(), strconv.FormatFloat(limit.Max, 'f', -1, 64))
	a.retryAfter = limit.Retry
}

// handler answers a request, or says why not.
type handler func(w http.ResponseWriter, r *http.Request) error

// answer turns a handler's error into a problem.
func (s *Server) answer(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			s.refuse(w, r, err)
		}
	}
}

// refuse writes the error as a problem. To a caller that has gone away nothing
// is said, not even the empty 200 that net/http would send on its own; and an
// answer that could not be finished is cut off.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if rw, ok := w.(*responder); r.Context().Err() != nil || errors.Is(err, errHungUp) || ok && rw.status != 0 {
		panic(http.ErrAbortHandler)
	}
	a := s.classify(err)
	s.logRefusal(w, r, a.Status, err)
	_ = s.writeRefusal(w, a) // who cannot read a refusal loses nothing
}

func (s *Server) writeRefusal(w http.ResponseWriter, a refusal) error {
	if a.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(secondsUp(a.retryAfter), 10))
	}
	return s.write(w, a.Status, wire.TypeProblem, a.Problem)
}

// logRefusal keeps what the caller is not told. The other refusals tell the
// caller everything, and a lost quorum is the Locker's to log, once and not
// per request.
func (s *Server) logRefusal(w http.ResponseWriter, r *http.Request, status int, err error) {
	level := slog.LevelWarn
	switch {
	case status == http.StatusInternalServerError:
		level = slog.LevelError
	case !errors.Is(err, fencing.ErrGuardUnavailable) && !errors.Is(err, access.ErrUnavailable):
		return
	}
	s.Logger.LogAttrs(context.WithoutCancel(r.Context()), level, "request failed",
		append(attributes(w, r), slog.Int("status", status), slog.Any("error", err))...)
}

// millisUp is what a caller has to wait for: rounded up, never negative.
func millisUp(d time.Duration) int64 {
	return max(0, (d + time.Millisecond - 1).Milliseconds())
}

// millisDown is what a caller still has: rounded down, never negative.
func millisDown(d time.Duration) int64 { return max(0, d.Milliseconds()) }

func secondsUp(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}
