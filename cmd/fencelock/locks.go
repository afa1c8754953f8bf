package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
)

// listing is what ls shows, and how.
type listing struct {
	prefix, output string
	watch          bool
	interval       time.Duration
}

func listCommand() *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use:     "ls [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List the locks that are held: their holders, for how long yet, and how many wait",
		Long: `List the locks that are held, those that begin with PREFIX or all, sorted by name:
their holders, their tokens, for how long yet, since when, and how many wait.

--watch repeats that until it is interrupted: on a terminal the list is redrawn,
elsewhere one list follows the other, with -o json one line each.`,
		Example: "  fencelock ls\n  fencelock ls orders/ --watch\n  fencelock ls -o json | jq -r '.[] | select(.waiters > 0).resource'",
		Args:    maxArgs(1, "PREFIX"),
	}
	server := connect(cmd)
	outputFlag(cmd, &l.output)
	cmd.Flags().BoolVar(&l.watch, "watch", false, "repeat until interrupted")
	cmd.Flags().DurationVar(&l.interval, "interval", time.Second, "with --watch, the pause between two looks, at least 100ms")
	cmd.ValidArgsFunction = server.resourceCompletion
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		const least = 100 * time.Millisecond
		if l.interval < least {
			return usageError{fmt.Errorf("--interval %s: must be at least %s", l.interval, least)}
		}
		l.prefix = strings.Join(args, "")
		locks, err := server.client(client.WithPatience(time.Second))
		if err != nil {
			return err
		}
		if l.watch {
			return l.follow(cmd.Context(), locks, cmd.OutOrStdout())
		}
		held, err := l.look(cmd.Context(), locks)
		if err != nil {
			return advise(err)
		}
		return l.print(cmd.OutOrStdout(), held)
	}
	return cmd
}

func (l listing) look(ctx context.Context, locks *client.Client) ([]wire.Lock, error) {
	held := []wire.Lock{}
	for lock, err := range locks.Locks(ctx, l.prefix) {
		if err != nil {
			return nil, err
		}
		held = append(held, lock)
	}
	slices.SortFunc(held, func(a, b wire.Lock) int { return strings.Compare(a.Resource, b.Resource) })
	// A lock that changed hands meanwhile comes twice.
	return slices.CompactFunc(held, func(a, b wire.Lock) bool { return a.Resource == b.Resource }), nil
}

func (l listing) print(w io.Writer, held []wire.Lock) error {
	if l.output == "json" {
		return printJSON(w, held)
	}
	return printLocks(w, held)
}

// follow prints the list again and again. That the service does not answer for a
// while is shown, and no reason to end.
func (l listing) follow(ctx context.Context, locks *client.Client, out io.Writer) error {
	draw := isTerminal(out) && l.output == "table"
	tick := time.NewTicker(l.interval)
	defer tick.Stop()
	for first := true; ; first = false {
		held, err := l.look(ctx, locks)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, client.ErrDenied) {
			return advise(err)
		}
		if err := l.frame(out, held, err, draw, first); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// frame is one picture of --watch, written at once so that it does not flicker.
func (l listing) frame(out io.Writer, held []wire.Lock, failed error, draw, first bool) error {
	var b bytes.Buffer
	if l.output == "json" {
		var v any = held
		if failed != nil {
			v = map[string]string{"error": failed.Error()}
		}
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			return err
		}
		_, err := out.Write(b.Bytes())
		return err
	}
	if failed != nil {
		fmt.Fprintln(&b, failed)
	} else if err := printLocks(&b, held); err != nil {
		return err
	}
	text := b.String()
	switch {
	case draw:
		const home, restOfLine, restOfScreen = "\x1b[H", "\x1b[K\n", "\x1b[J"
		text = home + strings.ReplaceAll(text, "\n", restOfLine) + restOfScreen
		if first {
			text = "\x1b[2J" + text
		}
	case !first:
		text = "\n" + text
	}
	_, err := io.WriteString(out, text)
	return err
}

func printLocks(w io.Writer, held []wire.Lock) error {
	if len(held) == 0 {
		_, err := fmt.Fprintln(w, "no locks are held")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "RESOURCE\tHOLDER\tTOKEN\tENDS IN\tHELD FOR\tWAITING") // tabwriter keeps the error for Flush
	for _, lock := range held {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%d\n", lock.Resource, holderOf(lock), lock.FencingToken,
			msOf(lock.RemainingMS), msOf(lock.HeldMS), lock.Waiters)
	}
	return table.Flush()
}

func holderOf(lock wire.Lock) string {
	if lock.Holder == nil {
		return "-"
	}
	return orDash(*lock.Holder)
}

func msOf(ms *int64) string {
	if ms == nil {
		return "-"
	}
	return msInWords(*ms)
}

func getCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "get RESOURCE",
		Short:   "Show one lock: its holder, its token, and the queue for it",
		Long:    "Show one lock: whether it is held, by which holder, and the queue for it. A free lock is no failure: the exit code is 0.",
		Example: "  fencelock get orders/42\n  fencelock get orders/42 -o json | jq .held",
		Args:    exactArgs(1, "RESOURCE"),
	}
	server := connect(cmd)
	outputFlag(cmd, &output)
	cmd.ValidArgsFunction = server.resourceCompletion
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		locks, err := server.client(client.WithPatience(time.Second))
		if err != nil {
			return err
		}
		lock, err := locks.Inspect(cmd.Context(), args[0])
		if err != nil {
			return advise(err)
		}
		if output == "json" {
			return printJSON(cmd.OutOrStdout(), lock)
		}
		return printLock(cmd.OutOrStdout(), lock)
	}
	return cmd
}

func printLock(w io.Writer, lock wire.Lock) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		_, _ = fmt.Fprintf(table, "%s\t%s\n", name, value) // tabwriter keeps the error for Flush
	}
	line("resource", lock.Resource)
	if lock.Held {
		line("holder", holderOf(lock))
		line("token", strconv.FormatInt(lock.FencingToken, 10))
		line("ends in", msOf(lock.RemainingMS))
		line("held for", msOf(lock.HeldMS))
		if len(lock.Metadata) > 0 && string(lock.Metadata) != "null" {
			line("metadata", string(lock.Metadata))
		}
	} else {
		line("state", "free")
	}
	line("waiting", strconv.Itoa(lock.Waiters))
	for i, waiter := range lock.Queue {
		line(fmt.Sprintf("  %d.", i+1), fmt.Sprintf("%s  for %s", orDash(waiter.Holder), msInWords(waiter.WaitingMS)))
	}
	return table.Flush()
}

func breakCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "break RESOURCE",
		Short: "Take a lock from its holder",
		Long: `Take a lock from its holder, for administrators. The holder learns of it with its next
request, which may be a third of its TTL later: until then it works beside the next
holder. Its token is stale as soon as the next lease is used, so storage that checks
tokens is safe.`,
		Example: "  fencelock break orders/42\n  fencelock break --yes orders/42",
		Args:    exactArgs(1, "RESOURCE"),
	}
	server := connect(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	cmd.ValidArgsFunction = server.resourceCompletion
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		locks, err := server.client(client.WithPatience(time.Second))
		if err != nil {
			return err
		}
		if !yes {
			if err := confirmBreak(cmd, locks, args[0]); err != nil {
				return err
			}
		}
		if err := locks.Break(cmd.Context(), args[0]); err != nil {
			return advise(err)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is broken\n", args[0])
		return err
	}
	return cmd
}

// confirmBreak shows whose lock it is, and asks.
func confirmBreak(cmd *cobra.Command, locks *client.Client, resource string) error {
	lock, err := locks.Inspect(cmd.Context(), resource)
	if err != nil {
		return advise(err)
	}
	if !lock.Held {
		return fmt.Errorf("no lease holds %s", resource)
	}
	if err := printLock(cmd.ErrOrStderr(), lock); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "The holder learns of it only with its next request.")
	return confirm(cmd, "break")
}
