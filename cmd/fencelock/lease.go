package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/client"
)

func acquireCommand() *cobra.Command {
	var f lockFlags
	var export bool
	cmd := &cobra.Command{
		Use:   "acquire RESOURCE",
		Short: "Take a lease and print it; extend and release it with the other commands",
		Long: `Take a lease on a resource and print it as JSON or, with --export, as lines for a
shell's eval, which set FENCING_TOKEN, FENCING_PROOF (if the server makes proofs),
FENCELOCK_RESOURCE and FENCELOCK_LEASE_ID. If it fails, the eval fails with the
same exit code.

The lease id is a secret: whoever knows it has the lease. The lease expires after
its TTL unless it is extended. To run one command under a
lock, use fencelock run.

Exit codes: 0; 1, or what -E says, if somebody else has the lock; 69 if the service
is unavailable, 77 if access is denied, 2 for wrong usage.`,
		Example: `  fencelock acquire --ttl 60s orders/42
  eval "$(fencelock acquire --export --wait 10s orders/42)" || exit
  fencelock extend && fencelock release          # of $FENCELOCK_LEASE_ID`,
		Args: exactArgs(1, "RESOURCE"),
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&export, "export", false, "print lines for a shell's eval")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := f.check(cmd)
		if err == nil {
			err = f.acquire(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], export)
		}
		if err != nil && export {
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "(exit %d)\n", exitCode(err)) // eval's own status
		}
		return err
	}
	return cmd
}

func (f *lockFlags) acquire(ctx context.Context, out, stderr io.Writer, resource string, export bool) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	locks, err := f.client(client.WithPatience(f.patience))
	if err != nil {
		return err
	}
	begun := sayWaiting(stderr, resource)
	lease, err := locks.Acquire(ctx, resource, f.request())
	begun()
	switch {
	case err != nil && ctx.Err() != nil:
		return interrupted(signals)
	case err != nil:
		return f.notAcquired(resource, err)
	}
	if export {
		_, err = io.WriteString(out, exports(lease))
	} else {
		err = printJSON(out, lease.Wire())
	}
	if err != nil { // nobody has read the lease id
		return errors.Join(err, release(ctx, lease))
	}
	return nil
}

func exports(lease *client.Lease) string {
	var b strings.Builder
	for _, v := range leaseVariables(lease) {
		fmt.Fprintf(&b, "export %s=%s\n", v[0], shellQuote(v[1]))
	}
	return b.String()
}

// shellQuote makes one word of any text, for every POSIX shell.
func shellQuote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

func extendCommand() *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "extend [LEASE_ID]",
		Short: "Give a lease its time to live again",
		Long: `Give a lease its time to live again and print it as JSON. Without LEASE_ID it is
$FENCELOCK_LEASE_ID, which is safer: arguments show in the list of processes.

Exit codes: 0; 75 if the lease has ended (stop what it protects), 69 if the
service is unavailable (the lease goes on for what is left of it), 77 if access is
denied, 2 for wrong usage.`,
		Example: "  fencelock extend\n  fencelock extend --ttl 60s | jq .validity_ms",
		Args:    mostArgs(1, "LEASE_ID"),
	}
	server := connect(cmd)
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "the new time to live, counted from now (default: the server's)")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if ttl < 0 || ttl%time.Millisecond != 0 {
			return usageError{fmt.Errorf("--ttl %s: must be whole milliseconds, and not negative", ttl)}
		}
		return onLease(server, args, func(locks *client.Client, id string) error {
			lease, err := locks.Extend(cmd.Context(), id, ttl)
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), lease.Wire())
		})
	}
	return cmd
}

func releaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release [LEASE_ID]",
		Short: "Give a lease back",
		Long: `Give a lease back. Without LEASE_ID it is $FENCELOCK_LEASE_ID, which is safer:
arguments show in the list of processes.

Exit codes: 0; 75 if the lease had ended before, so that what it protected was
not protected to the end; 69 if the service is unavailable (the lease ends with
its TTL), 77 if access is denied, 2 for wrong usage.`,
		Example: "  fencelock release\n  fencelock release \"$lease\"",
		Args:    mostArgs(1, "LEASE_ID"),
	}
	server := connect(cmd)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return onLease(server, args, func(locks *client.Client, id string) error {
			return locks.Release(cmd.Context(), id)
		})
	}
	return cmd
}

// onLease does something with the lease that the arguments or the environment name.
func onLease(server *connection, args []string, do func(*client.Client, string) error) error {
	id := os.Getenv(varLeaseID)
	if len(args) > 0 {
		id = args[0]
	}
	if id == "" {
		return usageError{errors.New("which lease? Name its lease id, or set " + varLeaseID)}
	}
	locks, err := server.client()
	if err != nil {
		return err
	}
	return advise(do(locks, id))
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// exactArgs and mostArgs are cobra's as usage errors that name what is missing.
func exactArgs(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("say %s %s", cmd.CommandPath(), names)}
		}
		return nil
	}
}

func mostArgs(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usageError{fmt.Errorf("say %s [%s]", cmd.CommandPath(), names)}
		}
		return nil
	}
}
