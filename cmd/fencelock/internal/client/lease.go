package client

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

func acquireCommand() *cobra.Command {
	var f lockFlags
	var export bool
	cmd := &cobra.Command{
		Use:   "acquire RESOURCE…",
		Short: "Take a lease and print it",
		Long: `Take a lease on a resource, or on 2 to 16 at once, all or none, and print it as JSON.
--export prints lines for a shell's eval, which set the variables that fencelock run
gives its command, and unset those of another lease. If acquire fails, the eval fails
with the same exit code.

The lease id is a secret that controls the lease. The lease expires with its
TTL unless it is extended. To run one command under a lock, use fencelock run.

Exit codes: 0; 75, or the one of -E, if the lock is held; 69 if the service is
unavailable, 77 if access is denied, 2 for wrong usage.`,
		Example: `  fencelock acquire --ttl 60s orders/42
  eval "$(fencelock acquire --export --wait 10s orders/42)" || exit
  fencelock acquire accounts/1 accounts/2        # one lease, with a token for each
  fencelock extend && fencelock release          # of $FENCELOCK_LEASE_ID`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.UsageError{Err: errors.New("no resource is named: use fencelock acquire RESOURCE…")}
			}
			return nil
		},
	}
	f.add(cmd)
	cmd.Flags().Lookup("holder").Usage = "label of the lease, which every reader sees (default: the host)"
	cmd.ValidArgsFunction = func(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return f.resourceCompletion(cmd, nil, begun) // every argument is a resource
	}
	cmd.Flags().BoolVar(&export, "export", false, "print lines for a shell's eval")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := f.check(cmd)
		if f.holder == "" {
			f.holder, _ = os.Hostname() // this process ends before its lease
		}
		if err == nil {
			err = f.print(cmd, args, export)
		}
		if err != nil && export {
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "(exit %d)\n", cli.ExitCode(err)) // eval's own status
		}
		return err
	}
	return cmd
}

// print takes a lease and prints it.
func (f *lockFlags) print(cmd *cobra.Command, resources []string, export bool) error {
	lease, err := f.obtain(cmd.Context(), cmd.ErrOrStderr(), resources)
	if err != nil {
		return f.hush(err)
	}
	if export {
		_, err = io.WriteString(cmd.OutOrStdout(), exports(lease))
	} else {
		err = cli.PrintJSON(cmd.OutOrStdout(), lease.Wire())
	}
	if err != nil { // the lease id did not reach a reader
		return errors.Join(err, f.release(cmd.Context(), lease))
	}
	return nil
}

func exports(lease *client.Lease) string {
	var b strings.Builder
	fmt.Fprintf(&b, "unset %s\n", strings.Join(allLeaseVariables(), " "))
	for _, v := range leaseVariables(lease) {
		name, value, _ := strings.Cut(v, "=")
		fmt.Fprintf(&b, "export %s=%s\n", name, shellQuote(value))
	}
	return b.String()
}

// shellQuote quotes any text as one word, for every POSIX shell.
func shellQuote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

func extendCommand() *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "extend [LEASE_ID]",
		Short: "Extend a lease: its TTL starts again",
		Long: `Extend a lease and print it as JSON: its TTL starts again. Without LEASE_ID it extends
$FENCELOCK_LEASE_ID, which is safer: arguments appear in the process list.

Exit codes: 0; 79 if the lease has ended (stop the work), 69 if the
service is unavailable (the lease keeps its remaining TTL), 77 if access is
denied, 2 for wrong usage.`,
		Example: "  fencelock extend\n  fencelock extend --ttl 60s | jq .validity_ms",
	}
	onLease(cmd, func(cmd *cobra.Command, locks *client.Client, id string) error {
		if err := checkMillis("ttl", ttl); err != nil {
			return err
		}
		lease, err := locks.Extend(cmd.Context(), id, ttl)
		if err != nil {
			return err
		}
		return cli.PrintJSON(cmd.OutOrStdout(), lease.Wire())
	})
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "the new TTL, counted from now (default: the lease's last TTL)")
	return cmd
}

func releaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release [LEASE_ID]",
		Short: "Release a lease",
		Long: `Release a lease. Without LEASE_ID it releases $FENCELOCK_LEASE_ID, which is safer:
arguments appear in the process list.

Exit codes: 0; 79 if the lease had already ended, so that its work was not
protected to the end; 69 if the service is unavailable (the lease expires with
its TTL), 77 if access is denied, 2 for wrong usage.`,
		Example: "  fencelock release\n  fencelock release \"$lease\"",
	}
	onLease(cmd, func(cmd *cobra.Command, locks *client.Client, id string) error {
		return locks.Release(cmd.Context(), id)
	})
	return cmd
}

// onLease makes a command act on the lease that its argument or the environment names.
func onLease(cmd *cobra.Command, act func(*cobra.Command, *client.Client, string) error) {
	server := connect(cmd)
	cmd.Args = cli.MaxArgs(1, "LEASE_ID")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id := os.Getenv(varLeaseID)
		if len(args) > 0 {
			id = args[0]
		}
		if id == "" {
			return cli.UsageError{Err: errors.New("no lease is named: give its lease id, or set " + varLeaseID)}
		}
		locks, err := server.client()
		if err != nil {
			return err
		}
		return plain(act(cmd, locks, id))
	}
}
