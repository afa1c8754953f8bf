package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
)

// electPause is between the end of a leadership, or of an outage, and the next candidacy.
const electPause = time.Second

func electCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "elect RESOURCE [flags] -- COMMAND [ARG…]",
		Short: "Run a command on the one host that leads, and on the next one when that fails",
		Long: `Stand for election: wait for the lock of RESOURCE, and run the command while this
process leads. When the lease is lost the command is ended, as by fencelock run, and
this process stands again. Candidates keep waiting through outages of the service.

The command resigns by ending: the lock is released, the next candidate leads at once,
and elect exits with the command's exit code. Let a service manager (Restart=always)
start it again, behind the other candidates.

A leader that dies is replaced when its TTL (--ttl) ends. Each leader has a larger
token than all before, which storage can check: a command that was stopped may still
believe that it leads.

fencelock get RESOURCE shows who leads, since when, and under which token; with
--watch it tells each change.

Environment, signals and the end of a command are as with fencelock run.

Exit codes: the command's own (128 and the signal's number if a signal killed it, also
before it led); 77 if access is denied, 2 for wrong usage, 126 and 127 if the command
cannot be run or does not exist.`,
		Example: `  fencelock elect scheduler -- ./scheduler
  fencelock elect --ttl 10s --holder web-1 scheduler -- sh -c 'scheduler --fencing-token "$FENCING_TOKEN"'
  fencelock get scheduler --watch`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash != 1 || dash == len(args) {
				return usageError{errors.New("separate one resource and the command with --: use fencelock elect RESOURCE -- COMMAND")}
			}
			return nil
		},
	}
	f.addLease(cmd)
	f.addGrace(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(cmd); err != nil {
			return err
		}
		return f.elect(cmd.Context(), cmd.ErrOrStderr(), args[:1], args[1:])
	}
	return cmd
}

// elect runs the command whenever this process leads, until the command ends by itself, or
// a signal ends ctx.
func (f *runFlags) elect(ctx context.Context, stderr io.Writer, resources, argv []string) error {
	path, err := f.prepare(resources, argv)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	for {
		err := f.once(ctx, stderr, resources, path, argv)
		if ctx.Err() != nil || !errors.Is(err, errEnded) && !errors.Is(err, client.ErrUnavailable) {
			return f.hush(err)
		}
		if !f.quiet {
			_, _ = fmt.Fprintf(stderr, "fencelock: %s. This process stands for election again\n", screen.Visible(err.Error()))
		}
		select {
		case <-time.After(electPause):
		case <-ctx.Done():
			return interrupted(signals)
		}
	}
}
