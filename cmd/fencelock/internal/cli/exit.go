// Package cli is what the commands share: exit codes, errors, arguments, and what they print.
package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
)

// Exit codes. Those from 64 to 78 are sysexits.h's.
const (
	ExitFailed      = 1  // for another reason than those below
	ExitUsage       = 2  // wrong flags or a wrong configuration, here or of the address
	ExitRisky       = 3  // something is risky, and nothing is wrong
	ExitUnavailable = 69 // no server answered, or none had a quorum
	ExitHeld        = 75 // the lock is held: try again
	ExitLost        = 79 // the lease was lost
	ExitDenied      = 77 // the service wants a credential, or allows it something else only
	ExitNotRunnable = 126
	ExitNotFound    = 127
	ExitSignalled   = 128 // and the signal's number
)

// UsageError is a mistake of whoever called the program.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// CodeError ends the program with a code of its own. Without an error it prints nothing.
type CodeError struct {
	Err  error
	Code int
}

func (e CodeError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e CodeError) Unwrap() error { return e.Err }

// PlainError is an error that says in plain words what happened and what to do. It wraps
// what it explains.
type PlainError struct {
	Text  string
	Cause error
}

func (e PlainError) Error() string { return e.Text }
func (e PlainError) Unwrap() error { return e.Cause }

// ExitCode is what the program ends with after an error.
func ExitCode(err error) int {
	coded, hasCode := errors.AsType[CodeError](err)
	_, isUsage := errors.AsType[UsageError](err)
	switch {
	case err == nil:
		return 0
	case hasCode:
		return coded.Code
	case isUsage, errors.Is(err, client.ErrInvalid):
		return ExitUsage
	case errors.Is(err, client.ErrLeaseLost):
		return ExitLost
	case errors.Is(err, client.ErrDenied):
		return ExitDenied
	case errors.Is(err, client.ErrUnavailable):
		return ExitUnavailable
	}
	return ExitFailed
}

// Run runs the command that the arguments name, prints why it failed, and returns the exit code.
func Run(ctx context.Context, root *cobra.Command) int {
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if coded, ok := errors.AsType[CodeError](err); !ok || coded.Err != nil {
		_, _ = fmt.Fprintln(root.ErrOrStderr(), "fencelock:", screen.VisibleLines(err.Error()))
	}
	return ExitCode(err)
}
