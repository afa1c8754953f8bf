package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
	"github.com/fencelock/fencelock/fencing"
)

func getCommand() *cobra.Command {
	var output string
	var watch bool
	cmd := &cobra.Command{
		Use:   "get RESOURCE",
		Short: "Show one lock: its holder, its token, and the queue for it",
		Long: `Show one lock: whether it is held, by whom, and the queue for it. Exits with 0 for a
free lock.

Without a quorum, or without the right to read, the lock's state is unknown: stdout
stays empty, and stderr says why and what to do.

--watch prints a line now and after each change of the holder, until Ctrl-C: with
-o json as get -o json prints it, or {"state":"unknown","reason":…}.

Exit codes: 0 for a lock that is held or free; 69 if its state is unknown because no
server responds, or because there is no quorum; 77 if it is unknown because the caller
may not read it; 2 for wrong usage.`,
		Example: "  fencelock get orders/42\n  fencelock get orders/42 -o json | jq .held\n  fencelock get scheduler --watch     # who leads",
		Args:    cli.ExactArgs(1, "RESOURCE"),
	}
	server := connect(cmd)
	cli.OutputFlag(cmd, &output)
	cmd.Flags().BoolVar(&watch, "watch", false, "print each change until interrupted")
	cmd.ValidArgsFunction = server.resourceCompletion
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		locks, err := server.client(client.WithPatience(time.Second))
		if err != nil {
			return err
		}
		if watch {
			return followLock(cmd.Context(), locks, args[0], changes{cmd.OutOrStdout(), output == "json"})
		}
		lock, err := locks.Inspect(cmd.Context(), args[0])
		if err != nil {
			return unknown("whether "+args[0]+" is held", err)
		}
		if output == "json" {
			return cli.PrintJSON(cmd.OutOrStdout(), lock.Wire())
		}
		return printLock(cmd.OutOrStdout(), lock.Wire())
	}
	return cmd
}

// changes prints the changes of a lock, one line each.
type changes struct {
	out  io.Writer
	json bool
}

func followLock(ctx context.Context, locks *client.Client, resource string, to changes) error {
	for lock, err := range locks.Watch(ctx, resource) {
		if err != nil {
			err = unknown("whether "+resource+" is held", err)
		}
		if err != nil && !errors.Is(err, client.ErrUnavailable) {
			return err
		}
		if err := to.print(lock.Wire(), err); err != nil {
			return err
		}
	}
	return nil
}

// print prints a change. If unknown is not nil, it prints why the state is unknown.
func (c changes) print(lock wire.Lock, unknown error) error {
	if c.json {
		return printLine(c.out, lock, unknown)
	}
	text := lock.Resource + " is free"
	switch {
	case unknown != nil:
		text = unknown.Error()
	case lock.Held:
		since := time.Now().Add(-time.Duration(*lock.HeldMS) * time.Millisecond)
		text = fmt.Sprintf("%s is held by %s under token %d since %s", lock.Resource, holderOf(lock), lock.FencingToken, since.Format(time.RFC3339))
	}
	_, err := fmt.Fprintf(c.out, "%s  %s\n", time.Now().Format(time.RFC3339), screen.Visible(text))
	return err
}

func printLock(w io.Writer, lock wire.Lock) error {
	table := &screen.Table{}
	table.Row("resource", lock.Resource)
	if lock.Held {
		table.Row("state", "held")
		table.Row("holder", holderOf(lock))
		table.Row("token", strconv.FormatInt(lock.FencingToken, 10))
		table.Row("ends in", msOf(lock.RemainingMS))
		table.Row("held for", msOf(lock.HeldMS))
		if len(lock.Metadata) > 0 && string(lock.Metadata) != "null" {
			table.Row("metadata", string(lock.Metadata))
		}
	} else {
		table.Row("state", "free")
	}
	table.Row("waiting", strconv.Itoa(lock.Waiters))
	for i, waiter := range lock.Queue {
		table.Row(fmt.Sprintf("  %d.", i+1), fmt.Sprintf("%s  for %s", cli.OrDash(waiter.Holder), msInWords(waiter.WaitingMS)))
	}
	return table.Write(w)
}

// breaking is the request of fencelock break: to break the lease with the token, or any lease.
type breaking struct {
	token    int64
	any, yes bool
	output   string
}

func breakCommand() *cobra.Command {
	var b breaking
	cmd := &cobra.Command{
		Use:   "break RESOURCE (--token N | --any)",
		Short: "Take a lock from its holder",
		Long: `Take a lock from its holder (administrators only). The holder learns of it with its next
request, up to a third of its TTL later: until then it works beside the next holder.
Its token is stale as soon as the next lease is used, so storage that checks tokens is
safe.

--token names the lease, by the token that fencelock get prints: it ends that lease and
never a later one, however often the command is repeated. --any ends whatever lease holds
the lock; repeated, it also ends the next one.

Exit codes: 0 if the lease is broken; 1 if the lock is free, or its token is not
the one of --token; 69 if no server responds, or without a quorum; 77 without the right
admin; 2 for wrong usage.`,
		Example: "  fencelock get orders/42                  # shows the token\n  fencelock break --token 34 orders/42\n  fencelock break --any --yes orders/42",
		Args:    cli.ExactArgs(1, "RESOURCE"),
	}
	server := connect(cmd)
	cmd.Flags().Int64Var(&b.token, "token", 0, "break the lease with this token, and no other")
	cmd.Flags().BoolVar(&b.any, "any", false, "break whatever lease holds the lock")
	cmd.Flags().BoolVar(&b.yes, "yes", false, "don't ask for confirmation")
	cli.OutputFlag(cmd, &b.output)
	cmd.ValidArgsFunction = server.resourceCompletion
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("token") == b.any {
			return cli.UsageError{Err: errors.New("say which lease to break: either --token N, which fencelock get prints, or --any")}
		}
		locks, err := server.client(client.WithPatience(time.Second))
		if err != nil {
			return err
		}
		return b.run(cmd, locks, args[0])
	}
	return cmd
}

func (b breaking) run(cmd *cobra.Command, locks *client.Client, resource string) error {
	if !b.yes {
		if err := b.confirm(cmd, locks, resource); err != nil {
			return err
		}
	}
	end := locks.BreakAny
	if !b.any {
		end = func(ctx context.Context, resource string) error {
			return locks.Break(ctx, resource, fencing.Token(b.token))
		}
	}
	if err := end(cmd.Context(), resource); err != nil {
		return plain(err)
	}
	if b.output == "json" {
		return cli.PrintJSON(cmd.OutOrStdout(), map[string]any{"resource": resource, "broken": true})
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is broken\n", screen.Visible(resource))
	return err
}

// confirm shows the holder of the lock, and asks the user to confirm the break.
func (b breaking) confirm(cmd *cobra.Command, locks *client.Client, resource string) error {
	lock, err := locks.Inspect(cmd.Context(), resource)
	switch {
	case err != nil:
		return plain(err)
	case !lock.Held:
		return fmt.Errorf("no lease holds %s", resource)
	case !b.any && int64(lock.Token) != b.token:
		return fmt.Errorf("the lease with token %d does not hold %s: token %d of %s does", b.token, resource, lock.Token, holderOf(lock.Wire()))
	}
	if err := printLock(cmd.ErrOrStderr(), lock.Wire()); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "The holder learns of it only with its next request.")
	return cli.Confirm(cmd, "break")
}
