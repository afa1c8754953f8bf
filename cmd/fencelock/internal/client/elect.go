package client

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
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
)

// electPause is the pause between the end of a leadership, or of an outage, and the next candidacy.
const electPause = time.Second

func electCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "elect RESOURCE [flags] -- COMMAND [ARG…]",
		Short: "Run a command on one host, and on another one when that fails",
		Long: `Wait for the lock of RESOURCE, and run the command while this process leads. If the
lease is lost, elect ends the command as fencelock run does, and becomes a candidate
again. Candidates keep waiting through outages of the service.

A command that ends resigns: the lock is released, the next candidate leads at once,
and elect exits with the command's exit code. Let a service manager (Restart=always)
start it again; it is then behind the other candidates.

If a leader dies, the next one leads when its TTL (--ttl) has passed. Each leader has
a larger token than all earlier ones, and storage can check it: a command that was
stopped may still believe that it leads.

fencelock get RESOURCE shows who leads, since when, and under which token; --watch
prints each change.

Environment, signals and the end of a command are those of fencelock run.

Exit codes: the command's own (128 and the signal's number if a signal killed it, also
before it led); 77 if access is denied, 2 for wrong usage, 126 and 127 if the command
cannot be run or does not exist.`,
		Example: `  fencelock elect scheduler -- ./scheduler
  fencelock elect --ttl 10s --holder web-1 scheduler -- sh -c 'scheduler --fencing-token "$FENCING_TOKEN"'
  fencelock get scheduler --watch`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash != 1 || dash == len(args) {
				return cli.UsageError{Err: errors.New("separate one resource and the command with --: use fencelock elect RESOURCE -- COMMAND")}
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

// elect runs the command whenever this process leads, until the command ends by itself or a signal ends
// ctx.
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
			_, _ = fmt.Fprintf(stderr, "fencelock: %s. This process is a candidate again\n", screen.Visible(err.Error()))
		}
		select {
		case <-time.After(electPause):
		case <-ctx.Done():
			return interrupted(signals)
		}
	}
}
