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
	// ErrHeld: another lease holds the resource, or the wait for it ended.
	ErrHeld = errors.New("resource is held")
	// ErrLeaseLost: the lease has ended, or can no longer be kept alive. It is
	// the cause of the context that Do cancels. Stop working; what was written
	// with the token is safe, what comes may be refused.
	// A stale token that a guard refused matches it, too (fencing.ErrStaleToken).
	ErrLeaseLost = fencing.ErrLeaseLost
	// ErrUnavailable: no server answered, or none had a quorum, or this caller
	// sends more requests than it may. Safe to retry.
	ErrUnavailable = errors.New("lock service unavailable")
	// ErrDenied: the service requires a credential, does not accept this one, or does
	// not allow it this. Not worth a retry.
	ErrDenied = errors.New("access denied")
	// ErrInvalid: the request can never succeed as it is, because of a malformed
	// resource, holder or time, for example. What this package sees of that is not sent.
	ErrInvalid = errors.New("invalid request")
)

// Error is the error of every method of a Client and of a Lease, but for the errors of a
// Do's own work, which it returns as they are. errors.Is and errors.As see what it wraps.
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

// Unwrap returns what happened.
func (e *Error) Unwrap() error { return e.Err }

// failed makes an Error of err, and nil of nil.
func failed(op, resource string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Resource: resource, Err: err}
}

// ProblemError is a refusal by the service. It matches ErrHeld, ErrLeaseLost,
// ErrDenied, ErrUnavailable or ErrInvalid with errors.Is where it means that.
type ProblemError struct {
	wire.Problem

	RetryAfter time.Duration // 0 if the service did not say
	URL        string        // of the server that was asked
	RequestID  string        // the response's X-Request-Id; "" without one
}

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
		return target == ErrUnavailable // another server, or the same one later, may well say yes
	}
	return false
}

// asType is errors.AsType of Go 1.26: the oldest Go that this module needs is 1.25.
func asType[E error](err error) (E, bool) {
	var target E
	ok := errors.As(err, &target)
	return target, ok
}
