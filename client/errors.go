package client

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

var (
	// ErrHeld: another lease holds the resource, or the wait in the queue was over.
	ErrHeld = errors.New("resource is held")
	// ErrLeaseLost: the lease has ended, or can no longer be kept alive. It is the cause of the context that Do
	// cancels. Stop working: earlier writes with the token are safe, later ones may be refused. A stale token
	// that a guard refused matches it, too (fencing.ErrStaleToken).
	ErrLeaseLost = fencing.ErrLeaseLost
	// ErrUnavailable: no server responded, or none had a quorum, or this caller exceeds its rate limit. Safe to
	// retry.
	ErrUnavailable = errors.New("lock service unavailable")
	// ErrDenied: the service requires a credential, does not accept this one, or does not allow this request.
	// Not worth a retry.
	ErrDenied = errors.New("access denied")
	// ErrInvalid: the request can never succeed, for example because of a malformed resource, holder or time.
	// This package does not send a request that it knows to be invalid.
	ErrInvalid = errors.New("invalid request")
)

// Error is the error of every method of a Client and of a Lease, except that Do returns the errors of its work
// unchanged. errors.Is and errors.As see the wrapped error.
type Error struct {
	Op       string // acquire, extend, release, keep alive, look up, inspect, watch, list, break, close, or read, claim, write, delete or history of a record
	Resource string // or several, separated by ", "; the prefix of a list; "" if it is not known
	Err      error
}

func (e *Error) Error() string {
	if e.Resource == "" {
		return e.Op + ": " + e.Err.Error()
	}
	return fmt.Sprintf("%s %q: %s", e.Op, e.Resource, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// failed makes an Error of err, and nil of nil.
func failed(op, resource string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Resource: resource, Err: err}
}

// ProblemError is a refusal by the service. With errors.Is it matches ErrHeld, ErrLeaseLost, ErrDenied,
// ErrUnavailable or ErrInvalid, depending on its kind. Fields that the refusal does not have are zero.
//
//	var problem *client.ProblemError
//	if errors.As(err, &problem) {
//		log.Print(problem.Kind(), problem.Holder, problem.Remaining)
//	}
type ProblemError struct {
	Type       string // see Kind; about:blank if the refusal is not the service's
	Title      string
	Status     int // the HTTP status
	Detail     string
	Field      string        // invalid-request: the JSON field, header or parameter
	Resource   string        // the resource in question, if there is one
	RequestID  string        // the request's id in the server's log; "" without one
	URL        string        // the URL of the server
	RetryAfter time.Duration // 0 if the service did not say

	// About the lease that holds the resource: lock-held, wait-timeout, other-lease.
	Holder       string        // its label
	FencingToken fencing.Token // 0 if no quorum agreed on a holder
	Remaining    time.Duration // until it ends, unless it is extended
	Waiters      int           // in the queue

	// The place in the queue at the end of the wait: wait-timeout.
	Position int           // 1 is the first
	Waited   time.Duration // at the server that responded

	// About the refused token: stale-token.
	Presented    fencing.Token
	HighestToken fencing.Token // the highest token that the record has seen

	problem wire.Problem
}

// ProblemOf makes a ProblemError of a problem that a program has read itself.
func ProblemOf(p wire.Problem) *ProblemError {
	e := &ProblemError{
		Type: p.Type, Title: p.Title, Status: p.Status, Detail: p.Detail, Field: p.Field, Resource: p.Resource, RequestID: p.RequestID,
		problem: p,
	}
	if held := p.HeldDetails; held != nil {
		e.Holder, e.FencingToken, e.Remaining, e.Waiters = held.Holder, fencing.Token(held.FencingToken), time.Duration(held.RemainingMS)*time.Millisecond, held.Waiters
	}
	if wait := p.WaitDetails; wait != nil {
		e.Position, e.Waited = wait.Position, time.Duration(wait.WaitedMS)*time.Millisecond
	}
	if stale := p.StaleDetails; stale != nil {
		e.Presented, e.HighestToken = fencing.Token(stale.Presented), fencing.Token(stale.HighestToken)
	}
	return e
}

// Wire returns the problem as the service sent it, including the details that a no-quorum has for each node.
func (e *ProblemError) Wire() wire.Problem { return e.problem }

func (e *ProblemError) Error() string {
	first, size := utf8.DecodeRuneInString(e.Title)
	text := string(unicode.ToLower(first)) + e.Title[size:]
	if size == 0 {
		text = "refused"
	}
	text = fmt.Sprintf("%s (%d)", text, e.Status)
	if e.Type == noType && e.Status == http.StatusNotFound {
		return "the 404 did not come from fencelock: check host, port and path"
	}
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// Kind is the problem's type without the path: "lock-held", "no-quorum", ….
func (e *ProblemError) Kind() string { return strings.TrimPrefix(e.Type, wire.ProblemPrefix) }

// Is maps the kinds of problem to this package's errors.
func (e *ProblemError) Is(target error) bool {
	switch e.Kind() {
	case "lock-held", "wait-timeout":
		return target == ErrHeld
	case "lease-not-held", "max-hold-reached":
		return target == ErrLeaseLost
	case "stale-token":
		return target == ErrLeaseLost || target == fencing.ErrStaleToken
	case "invalid-request":
		return target == ErrInvalid
	}
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return target == ErrDenied
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return target == ErrUnavailable // another server, or the same one later, may serve it
	}
	return false
}

// asType is errors.AsType of Go 1.26: the oldest Go that this module needs is 1.25.
func asType[E error](err error) (E, bool) {
	var target E
	ok := errors.As(err, &target)
	return target, ok
}
