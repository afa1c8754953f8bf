// Package cli has what all commands share: exit codes, errors, arguments, and output.
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
	ExitFailed      = 1  // for any other reason
	ExitUsage       = 2  // wrong flags, a wrong configuration or a wrong address
	ExitRisky       = 3  // something is risky, but nothing is wrong
	ExitUnavailable = 69 // no server responded, or none had a quorum
	ExitHeld        = 75 // the lock is held: try again
	ExitLost        = 79 // the lease was lost
	ExitDenied      = 77 // the service requires a credential, or does not allow this request
	ExitNotRunnable = 126
	ExitNotFound    = 127
	ExitSignalled   = 128 // plus the signal's number
)

// UsageError is a mistake in how the program was called.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// CodeError ends the program with a specific exit code. If Err is nil, nothing is printed.
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

// PlainError says in plain words what happened and what to do. It wraps the error that it explains.
type PlainError struct {
	Text  string
	Cause error
}

func (e PlainError) Error() string { return e.Text }
func (e PlainError) Unwrap() error { return e.Cause }

// ExitCode returns the program's exit code after an error.
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

// Run runs the command that the arguments name. It prints the error, if there is one, and returns the
// exit code.
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
