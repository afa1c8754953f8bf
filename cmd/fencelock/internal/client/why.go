package client

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
)

func whyCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "why [NAME]",
		Short: "Show who is in the way of a resource or a holder, and deadlocks",
		Long: `Show who is in the way. NAME is a resource or the label of a holder. The lines follow the
chain: what the holder holds, what it waits for, who holds that, what that holder waits
for, and so on to the end. Without NAME they show all holders that wait.

Holders that wait for each other in a circle are a deadlock. For each deadlock the command
prints the lease to break: that of the holder whose wait began last.

Holders are known by their labels (--holder of acquire), so give each process its own.
Leases and waits without a label are in no chain. A program that retries, instead of
waiting in the queue, waits for nothing that the service can see.

Exit codes: 0; 1 if there is a deadlock; 69 if no server responds, or without a quorum; 77
if the server does not know the caller; 2 for wrong usage.`,
		Example: "  fencelock why orders/42              # what is it waiting for, and who has it?\n  fencelock why worker-7\n  fencelock why -o json | jq .deadlocks",
		Args:    cli.MaxArgs(1, "NAME"),
	}
	server := connect(cmd)
	cli.OutputFlag(cmd, &output)
	cmd.ValidArgsFunction = server.resourceCompletion
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var found wire.Blocked
		query := url.Values{"name": {strings.Join(args, "")}}
		if err := server.read(cmd.Context(), "/blocked?"+query.Encode(), &found); err != nil {
			return err
		}
		show := printBlocked
		if output == "json" {
			show = func(w io.Writer, b wire.Blocked) error { return cli.PrintJSON(w, b) }
		}
		if err := show(cmd.OutOrStdout(), found); err != nil {
			return err
		}
		for _, unseen := range notSeen(found) {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "fencelock:", unseen) // the printed lines matter more than an error here
		}
		switch n := len(found.Deadlocks); n {
		case 0:
			return nil
		case 1:
			return errors.New("there is a deadlock")
		default:
			return fmt.Errorf("there are %d deadlocks", n)
		}
	}
	return cmd
}

// notSeen returns what the chain may lack.
func notSeen(b wire.Blocked) (lines []string) {
	if b.Unlabelled > 0 {
		lines = append(lines, fmt.Sprintf("leases and waits without a label, which are in no chain: %d", b.Unlabelled))
	}
	if b.Truncated {
		lines = append(lines, "not everything was read: holders, waits and deadlocks may be missing")
	}
	return lines
}

// printBlocked prints one line for each lease and each wait, and one paragraph for each deadlock.
func printBlocked(w io.Writer, b wire.Blocked) error {
	var lines []string
	for _, lock := range b.Locks {
		lines = append(lines, lockInWords(lock))
	}
	for _, holder := range b.Holders {
		lines = append(lines, holderInWords(holder)...)
	}
	switch {
	case len(lines) > 0:
	case b.Name == "":
		lines = append(lines, "no holder waits")
	default:
		lines = append(lines, b.Name+" is free, and no holder has this label")
	}
	for _, deadlock := range b.Deadlocks {
		lines = append(lines, deadlockInWords(deadlock)...)
	}
	for i, line := range lines {
		lines[i] = screen.Visible(line)
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

func lockInWords(lock wire.Lock) string {
	if !lock.Held {
		return fmt.Sprintf("%s is free, with %d in the queue", lock.Resource, lock.Waiters)
	}
	return fmt.Sprintf("%s is held by %s under token %d for %s, and ends in %s unless it is extended; %d in the queue",
		lock.Resource, labelOf(*lock.Holder), lock.FencingToken, msOf(lock.HeldMS), msOf(lock.RemainingMS), lock.Waiters)
}

func holderInWords(h wire.BlockedHolder) (lines []string) {
	for _, hold := range h.Holds {
		lines = append(lines, fmt.Sprintf("%s holds %s under token %d for %s", h.Holder, hold.Resource, hold.FencingToken, msInWords(hold.HeldMS)))
	}
	for _, wait := range h.Waits {
		lines = append(lines, waitInWords(wait))
	}
	if len(h.Waits) == 0 {
		lines = append(lines, h.Holder+" waits for nothing")
	}
	return lines
}

func waitInWords(wait wire.Wait) string {
	return fmt.Sprintf("%s waits for %s for %s, at place %d in the queue; blocked by %s",
		wait.Holder, wait.Resource, msInWords(wait.WaitingMS), wait.Position, labelOf(wait.HeldBy))
}

func deadlockInWords(d wire.Deadlock) []string {
	lines := []string{"", "deadlock for " + msInWords(d.DeadlockedMS)}
	for _, wait := range d.Waits {
		lines = append(lines, "  "+waitInWords(wait))
	}
	return append(lines, fmt.Sprintf("  the wait of %s began last; to break its lease: fencelock break --token %d -- %s",
		d.Break.Holder, d.Break.FencingToken, shellQuote(d.Break.Resource)))
}

// labelOf returns the label of a lease, or a text that says that it has none.
func labelOf(holder string) string {
	if holder == "" {
		return "a lease without a label"
	}
	return holder
}
