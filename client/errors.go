package client

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

var (
	// ErrHeld: another lease holds the resource, or the wait for it ended.
	ErrHeld = errors.New("resource is held")
	// ErrLeaseLost: the lease has ended, or can no longer be kept alive. It is
	// the cause of the context that Do cancels. Stop working; what was written
	// with the token is safe, what comes may be refused.
	ErrLeaseLost = errors.New("lease lost")
	// ErrUnavailable: no server answered, or none had a quorum, or this caller
	// sends more requests than it may. Safe to retry.
	ErrUnavailable = errors.New("lock service unavailable")
	// ErrDenied: the service requires a credential, does not accept this one, or does
	// not allow it this. Not worth a retry.
	ErrDenied = errors.New("access denied")
)

// ProblemError is a refusal by the service. It matches ErrHeld, ErrLeaseLost,
// ErrDenied or ErrUnavailable with errors.Is where it means that.
type ProblemError struct {
	wire.Problem

	RetryAfter time.Duration // 0 if the service did not say
}

func (e *ProblemError) Error() string {
	text := fmt.Sprintf("%s (%d)", e.Title, e.Status)
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
