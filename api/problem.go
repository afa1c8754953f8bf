package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// Refusals by this package, in addition to those of lockcore and fencing.
var (
	errBodyTooLarge     = fmt.Errorf("the request body is larger than %d bytes", MaxBodyBytes)
	errBodyTimeout      = fmt.Errorf("the request body did not arrive within %s", bodyTimeout)
	errMediaType        = errors.New("the request body must be sent as Content-Type: application/json")
	errTokenRequired    = errors.New("send the token of your lease in the header Fencing-Token")
	errUnknownPath      = errors.New("there is nothing at this path; see /openapi.yaml")
	errMethodNotAllowed = errors.New("the path does not allow this method; see the header Allow")
	errLockNotHeld      = errors.New("no lease holds the resource")
	errNoGuard          = errors.New("this server keeps no guarded records: FENCELOCK_DATABASE_URL is not set")
	errListLimit        = fmt.Errorf("this caller has %d listings in flight or not read yet, the limit: read one to its end first", maxListsOfCaller)
	errUnauthorized     = errors.New("send Authorization: Bearer with a token that this service knows, or a client certificate; see docs/how-to/access.md")
	errForbidden        = errors.New("the caller's rules do not give the right that this needs")
	errInternal         = errors.New("see the server's log under this request_id")
	// errField stands for every *lockcore.FieldError and malformed value, see classify.
	errField = errors.New("invalid field")
)

// problem is a kind of refusal: the response to an error. Every kind has a page in problems/, served at
// /problems/{slug}.
type problem struct {
	slug   string
	status int
	title  string
	is     error  // compared with the error by errors.Is
	detail string // "" for the text of is
}

// refusal is a problem with its values, ready to be sent.
type refusal struct {
	wire.Problem
	retryAfter time.Duration // 0 for none
}

// problems is the only table from errors to HTTP. The first match counts, and the last line matches every
// error. details adds what an error itself contains. "too-many-…" is 503, a limit of the server; "…-limit"
// is 429, a limit of the caller.
func problems() []problem {
	return []problem{
		{"invalid-request", http.StatusBadRequest, "The request is not valid", errField, ""},
		{"request-timeout", http.StatusRequestTimeout, "The request body did not arrive in time", errBodyTimeout, ""},
		{"body-too-large", http.StatusRequestEntityTooLarge, "The request body is too large", errBodyTooLarge, ""},
		{"unsupported-media-type", http.StatusUnsupportedMediaType, "The request body is not JSON", errMediaType, ""},
		{"not-found", http.StatusNotFound, "There is nothing at this path", errUnknownPath, ""},
		{"method-not-allowed", http.StatusMethodNotAllowed, "The path does not allow this method", errMethodNotAllowed, ""},
		{"lock-held", http.StatusConflict, "The resource is locked", lockcore.ErrHeld, "another lease holds the resource, or other requests are ahead of this one in the queue"},
		{"wait-timeout", http.StatusConflict, "The wait ended without a grant", lockcore.ErrWaitTimeout, "the wait ended before the request got the resource"},
		{"too-many-waiters", http.StatusServiceUnavailable, "Too many requests wait in the queue at this server", lockcore.ErrTooManyWaiters, ""},
		{"too-many-listeners", http.StatusServiceUnavailable, "Too many readers listen to this server's events", events.ErrTooMany, ""},
		{"listener-limit", http.StatusTooManyRequests, "The caller is at its limit of event streams", events.ErrLimit, ""},
		{"list-limit", http.StatusTooManyRequests, "The caller is at its limit of listings", errListLimit, ""},
		{"host-not-served", http.StatusMisdirectedRequest, "The server does not accept this host name", edge.ErrHost, ""},
		{"server-stopping", http.StatusServiceUnavailable, "The server is stopping", lockcore.ErrStopping, ""},
		{"lock-not-held", http.StatusNotFound, "The resource is not locked", errLockNotHeld, ""},
		{"other-lease", http.StatusPreconditionFailed, "Another lease holds the resource", lockcore.ErrOtherLease, ""},
		{"lease-not-held", http.StatusNotFound, "The lease has ended", lockcore.ErrNotHeld, "the lease has ended, or never existed: stop the work that it protects, and acquire again"},
		{"max-hold-reached", http.StatusConflict, "The lease has reached its maximum hold time", lockcore.ErrMaxHold, "release the lease, or let it expire, and acquire again"},
		{"idempotency-mismatch", http.StatusUnprocessableEntity, "The idempotency key was used for another request", lockcore.ErrIdempotencyMismatch, ""},
		{"tokens-exhausted", http.StatusConflict, "The resource has used up its fencing tokens", lockcore.ErrTokensExhausted, ""},
		{"no-quorum", http.StatusServiceUnavailable, "No quorum of nodes", lockcore.ErrNoQuorum, ""},
		{"token-required", http.StatusPreconditionRequired, "A fencing token is required", errTokenRequired, ""},
		{"proof-required", http.StatusPreconditionRequired, "A fencing proof is required", fencing.ErrNoProof, "send the fencing_proof of your lease in the header Fencing-Proof, beside its token"},
		{"proof-refused", http.StatusForbidden, "The fencing proof is refused", fencing.ErrProof, "the proof does not show that the token was granted for the resource: send the token and the proof of the same lease"},
		{"stale-token", http.StatusPreconditionFailed, "The fencing token is stale", fencing.ErrStaleToken, "a larger token was seen, so another lease has held the resource since: stop, and acquire again"},
		{"record-not-found", http.StatusNotFound, "There is no such record", fencing.ErrNotFound, "the resource was never written or claimed"},
		// The causes of unavailability only go to the log, because they name hosts and users.
		{"guard-unavailable", http.StatusServiceUnavailable, "The storage of guarded records is unavailable", fencing.ErrGuardUnavailable, "the storage of guarded records fails or does not respond (see guard in /readyz); locks still work. " +
			"The write may have taken effect; repeat it with the same token while its lease is held"},
		{"guard-not-configured", http.StatusNotImplemented, "This server keeps no guarded records", errNoGuard, ""},
		// The response is the same for every reason, so that it does not reveal how close a credential was
		// to a valid one.
		{"unauthorized", http.StatusUnauthorized, "The caller is not authenticated", errUnauthorized, ""},
		{"forbidden", http.StatusForbidden, "The caller is not allowed to do this", errForbidden, ""},
		{"identity-unavailable", http.StatusServiceUnavailable, "The caller's identity cannot be checked now", access.ErrUnavailable, access.ErrUnavailable.Error() + "; other credentials still work"},
		{"request-limit", http.StatusTooManyRequests, "The caller sends too many requests", access.ErrRequestLimit, ""},
		{"waiter-limit", http.StatusTooManyRequests, "The caller is at its limit of waiting requests", access.ErrWaiterLimit, ""},
		{"too-many-records", http.StatusServiceUnavailable, "The guarded records are full", errTooManyRecords, ""},
		{"record-limit", http.StatusTooManyRequests, "The caller is at its limit of guarded records", access.ErrRecordLimit, ""},
		{"lease-limit", http.StatusTooManyRequests, "The caller is at its limit of leases", access.ErrLeaseLimit, ""},
		{"internal-error", http.StatusInternalServerError, "Internal error", errInternal, ""},
	}
}

// classify finds the error's kind and makes the refusal.
func (s *Server) classify(err error) refusal {
	if field := asField(err); field != nil {
		err = errors.Join(errField, field)
	}
	kind := slices.IndexFunc(s.kinds, func(k problem) bool { return errors.Is(err, k.is) })
	if kind < 0 {
		kind, err = len(s.kinds)-1, errInternal
	}
	k := s.kinds[kind]
	a := refusal{Problem: wire.Problem{
		Type: wire.ProblemPrefix + k.slug, Title: k.title, Status: k.status, Detail: cmp.Or(k.detail, k.is.Error()),
	}}
	if k.status == http.StatusTooManyRequests || k.status == http.StatusServiceUnavailable {
		a.retryAfter = soon
	}
	a.details(err)
	return a
}

// details adds the values that the error itself contains.
func (a *refusal) details(err error) {
	describe(err, func(e *lockcore.FieldError) { a.Field, a.Detail = e.Field, e.Error() })
	describe(err, a.held)
	describe(err, func(e *lockcore.WaitTimeoutError) {
		a.held(&e.HeldError)
		a.retryAfter = min(a.retryAfter, time.Second) // the request may wait again at once, since the lease may be released before it expires
		a.WaitDetails = &wire.WaitDetails{Position: e.Position, WaitedMS: millisDown(e.Waited), Queued: e.Kept}
	})
	describe(err, func(e *lockcore.OtherLeaseError) {
		a.held(&e.HeldError)
		a.retryAfter = 0 // waiting does not help
		a.Detail = fmt.Sprintf("the lease with token %d does not hold the resource, and nothing was changed: the lease with token %d holds it now; break that one if it is in your way", e.Named, e.Token)
	})
	describe(err, a.noQuorum)
	describe(err, func(e *fencing.StaleTokenError) {
		a.Resource = e.Resource
		a.StaleDetails = &wire.StaleDetails{Presented: int64(e.Presented), HighestToken: int64(e.Highest)}
	})
	describe(err, func(e *fencing.ProofError) { a.Resource = e.Resource })
	describe(err, func(e unreadError) { a.Detail = e.Error() })
	describe(err, func(e *edge.HostError) { a.Detail = e.Error() })
	describe(err, func(e *forbiddenError) {
		a.Resource = e.resource
		a.Detail = fmt.Sprintf("this needs the right %s here, which the access file does not give to %s", e.right, e.who)
	})
	describe(err, func(e *access.LimitError) {
		a.Detail = fmt.Sprintf("%s: %s at this server", e.Error(), strconv.FormatFloat(e.Max, 'f', -1, 64))
		a.retryAfter = e.Retry
	})
}

// describe calls add with the error of type E, if err is or wraps one.
func describe[E error](err error, add func(E)) {
	if e, ok := errors.AsType[E](err); ok {
		add(e)
	}
}

// held adds the lease that holds the resource.
func (a *refusal) held(e *lockcore.HeldError) {
	a.Resource = e.Resource
	a.HeldDetails = &wire.HeldDetails{
		Holder: e.Holder, FencingToken: int64(e.Token), RemainingMS: millisUp(e.Remaining), Waiters: e.Waiters,
	}
	a.retryAfter = max(e.Remaining, time.Millisecond)
}

func (a *refusal) noQuorum(e *lockcore.QuorumError) {
	a.Resource = e.Resource
	a.Detail = fmt.Sprintf("%d of %d nodes agreed, and %d are needed", e.Granted, len(e.Nodes), e.Quorum)
	a.QuorumDetails = &wire.QuorumDetails{
		Asked: len(e.Nodes), Answered: e.Answered, Granted: e.Granted, Quorum: e.Quorum, Nodes: make([]wire.NodeOutcome, len(e.Nodes)),
	}
	for i, n := range e.Nodes {
		a.Nodes[i] = wire.NodeOutcome{Node: n.Node, Reason: n.Reason}
	}
	a.retryAfter = max(e.RetryAfter, time.Millisecond)
}

// asField returns the FieldError that err is or wraps, or that a malformed value becomes; nil if there is
// none.
func asField(err error) *lockcore.FieldError {
	if field, ok := errors.AsType[*lockcore.FieldError](err); ok {
		return field
	}
	switch {
	case errors.Is(err, fencing.ErrMalformedToken):
		return badField(wire.HeaderFencingToken, fmt.Sprintf("must be a whole number from 1 to %d, in digits only", fencing.MaxToken))
	case errors.Is(err, fencing.ErrMalformedResource):
		return badField("resource", "is not one that the guard's storage takes")
	case errors.Is(err, fencing.ErrMalformedValue):
		return badField(fieldBody, "is not a JSON value that the guard's storage takes")
	}
	return nil
}

func badField(field, reason string) *lockcore.FieldError {
	return &lockcore.FieldError{Field: field, Reason: reason}
}

// handler writes the response to a request, or returns the error that refuses it.
type handler func(w *exchange, r *http.Request) error

// answer adds the server's name to the response, and turns a handler's error into a problem. Every handler
// runs inside it, on the admin listener too.
func (s *Server) answer(h handler) http.HandlerFunc {
	name := []string{s.Events.Server()}
	return func(inner http.ResponseWriter, r *http.Request) {
		w := exchangeOf(inner)
		w.Header()[wire.HeaderServer] = name
		if err := h(w, r); err != nil {
			s.refuse(w, r, err)
		}
	}
}

// refuse writes the error as a problem. If the caller has hung up it aborts instead, because net/http would
// send an empty 200. It also aborts if a response was begun.
func (s *Server) refuse(w *exchange, r *http.Request, err error) {
	stranger := w.who == nil && s.Access != nil
	if stranger {
		edge.Of(r).SlowDown() // even if the caller has reset the stream
	}
	if r.Context().Err() != nil || errors.Is(err, edge.ErrHungUp) || w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	a := s.classify(err)
	s.logRefusal(w, r, a.Status, err)
	w.within = refusalTimeout
	if a.Status == http.StatusTooManyRequests && w.part == nil {
		edge.Of(r).SlowDownCaller(w.caller.Name()) // a refusal costs the server as much as one for a stranger
	}
	switch {
	case stranger:
		s.refuseStranger(w, r, a)
		return
	case errors.Is(err, errUnread):
		s.refuseUnread(w, r, a)
		return
	}
	_ = s.writeRefusal(w, a) // a caller that cannot read a refusal loses nothing
}

// refuseStranger writes a refusal, which must be read soon.
func (s *Server) refuseStranger(w *exchange, r *http.Request, a refusal) {
	leave, ok := s.strangers.Enter(r, false)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	defer leave()
	if s.writeRefusal(w, a) == nil {
		_ = http.NewResponseController(w).Flush()
	}
}

func (s *Server) writeRefusal(w *exchange, a refusal) error {
	if a.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(secondsUp(a.retryAfter), 10))
	}
	a.RequestID = w.Header().Get(wire.HeaderRequestID)
	return s.write(w, a.Status, wire.TypeProblem, a.Problem)
}

// logRefusal logs the cause that the response leaves out. Other refusals contain everything and are not
// logged. The Service logs a lost quorum, and guardWatch a failing guard, once and not for each request.
func (s *Server) logRefusal(w *exchange, r *http.Request, status int, err error) {
	level := slog.LevelWarn
	switch {
	case status == http.StatusInternalServerError:
		level = slog.LevelError
	case !errors.Is(err, access.ErrUnavailable):
		return
	}
	s.Logger.LogAttrs(context.WithoutCancel(r.Context()), level, "request failed",
		append(attributes(w, r), slog.Int("status", status), slog.Any("error", err))...)
}

// millisUp converts the time that a caller must wait: rounded up, never negative.
func millisUp(d time.Duration) int64 {
	return max(0, (d + time.Millisecond - 1).Milliseconds())
}

// millisDown converts the time that a caller still has: rounded down, never negative.
func millisDown(d time.Duration) int64 { return max(0, d.Milliseconds()) }

func secondsUp(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}
