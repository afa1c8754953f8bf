package main

import (
	"errors"

	"github.com/fencelock/fencelock/client"
)

// Exit codes. Those from 64 to 78 are sysexits.h's.
const (
	exitFailed      = 1  // for another reason than those below
	exitUsage       = 2  // wrong flags or a wrong configuration, here or of the address
	exitUnavailable = 69 // no server answered, or none had a quorum
	exitHeld        = 75 // the lock is held: try again
	exitLost        = 79 // the lease was lost
	exitDenied      = 77 // the service wants a credential, or allows it something else only
	exitNotRunnable = 126
	exitNotFound    = 127
	exitSignalled   = 128 // and the signal's number
)

// usageError is a mistake of whoever called the program.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// codeError ends the program with a code of its own. Without an error it prints nothing.
type codeError struct {
	error

	code int
}

func (e codeError) Unwrap() error { return e.error }

// exitCode is what the program ends with after an error.
func exitCode(err error) int {
	coded, hasCode := errors.AsType[codeError](err)
	_, isUsage := errors.AsType[usageError](err)
	switch {
	case err == nil:
		return 0
	case hasCode:
		return coded.code
	case isUsage, errors.Is(err, client.ErrInvalid):
		return exitUsage
	case errors.Is(err, client.ErrLeaseLost):
		return exitLost
	case errors.Is(err, client.ErrDenied):
		return exitDenied
	case errors.Is(err, client.ErrUnavailable):
		return exitUnavailable
	}
	return exitFailed
}

// refusedAs says whether the service refused with this kind of problem.
func refusedAs(err error, kind string) bool {
	problem, ok := errors.AsType[*client.ProblemError](err)
	return ok && problem.Kind() == kind
}
