package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
)

// listing is the options of ls.
type listing struct {
	server         *connection
	prefix, output string
	search         string
	watch          bool
	interval       time.Duration
}

func listCommand() *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use:     "ls [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List the held locks: holders, time left, and how many requests wait",
		Long: `List the held locks, all or those with PREFIX, sorted by name: holder, token, time
left, time held, and how many requests wait.

Without a quorum, or without the right to read, it is unknown which locks are held: ls
lists nothing, stderr says why and what to do, and the exit code is not 0. A caller that
may read only some of the locks gets those, and stderr names the prefixes.

--watch repeats the list until Ctrl-C. On a terminal it redraws the list to fit, and
counts the rows that have no room. While the state is unknown, the last list is dimmed
and shows its age. In a file or a pipe it prints one list after the other, with -o json
one line each.

Exit codes: 0; 69 if it is unknown because no server responds, or because there is no
quorum; 77 if it is unknown because the caller may not read it; 2 for wrong usage.`,
		Example: "  fencelock ls\n  fencelock ls orders/ --watch\n  fencelock ls -o json | jq -r '.[] | select(.waiters > 0).resource'",
		Args:    cli.MaxArgs(1, "PREFIX"),
	}
	l.server = connect(cmd)
	cli.OutputFlag(cmd, &l.output)
	cmd.Flags().StringVar(&l.search, "search", "", "only locks whose resource or holder contains this text")
	cmd.Flags().BoolVar(&l.watch, "watch", false, "repeat until interrupted")
	cmd.Flags().DurationVar(&l.interval, "interval", time.Second, "with --watch, the pause between lists, at least 100ms")
	cmd.ValidArgsFunction = l.server.resourceCompletion
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		const least = 100 * time.Millisecond
		if l.interval < least {
			return cli.UsageError{Err: fmt.Errorf("--interval %s: must be at least %s", l.interval, least)}
		}
		l.prefix = strings.Join(args, "")
		locks, err := l.server.client(client.WithPatience(time.Second))
		if err != nil {
			return err
		}
		if l.watch {
			return l.follow(cmd.Context(), locks, cmd.OutOrStdout())
		}
		held, err := l.look(cmd.Context(), locks)
		if err != nil {
			return err
		}
		if held.only != "" {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "fencelock:", screen.Visible(held.only)) // the printed list matters more than an error here
		}
		if l.output == "json" {
			return cli.PrintJSON(cmd.OutOrStdout(), held.locks)
		}
		return printLocks(cmd.OutOrStdout(), held.locks)
	}
	return cmd
}

// heldLocks are the held locks that the caller may read.
type heldLocks struct {
	locks []wire.Lock
	only  string // describes which locks it is limited to; "" if it is not limited
}

// look lists the locks. Its error says why it is unknown which locks are held.
func (l listing) look(ctx context.Context, locks *client.Client) (held heldLocks, err error) {
	defer func() {
		if err != nil {
			err = unknown("which locks are held", err)
		}
	}()
	if held.locks, err = l.all(ctx, locks); err != nil {
		return held, err
	}
	slices.SortFunc(held.locks, func(a, b wire.Lock) int { return strings.Compare(a.Resource, b.Resource) })
	// A lock that changed hands during the listing appears twice.
	held.locks = slices.CompactFunc(held.locks, func(a, b wire.Lock) bool { return a.Resource == b.Resource })
	caller, err := l.server.whoAmI(ctx)
	if err != nil {
		return held, err
	}
	held.only, err = readable(caller, l.prefix)
	return held, err
}

// all returns the locks in the nodes' order. If there is a search, it returns only the matches.
func (l listing) all(ctx context.Context, locks *client.Client) ([]wire.Lock, error) {
	held := []wire.Lock{}
	if l.search == "" {
		for lock, err := range locks.Locks(ctx, l.prefix) {
			if err != nil {
				return nil, err
			}
			held = append(held, lock.Wire())
		}
		return held, nil
	}
	query := url.Values{"prefix": {l.prefix}, "search": {l.search}, "limit": {"1000"}}
	for {
		var page wire.LockPage
		if err := l.server.read(ctx, "/locks?"+query.Encode(), &page); err != nil {
			return nil, err
		}
		if held = append(held, page.Locks...); page.NextCursor == "" {
			return held, nil
		}
		query.Set("cursor", page.NextCursor)
	}
}

// unknown returns the error of a question about locks that the service could not answer. It must not look
// like "free" or "none are held".
func unknown(question string, err error) error {
	if errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrDenied) {
		return cli.PlainError{Text: fmt.Sprintf("it is unknown %s: %s", question, plain(err)), Cause: err}
	}
	return plain(err)
}

// readable describes which of the resources that begin with prefix are shown; "" means all of them. If
// the caller may read none, the error is client.ErrDenied.
func readable(caller wire.Caller, prefix string) (only string, err error) {
	around := slices.IndexFunc(caller.Rules, func(r wire.Rule) bool { return strings.HasPrefix(prefix, r.Prefix) })
	reads := around >= 0 && caller.Rules[around].Right != "none"
	var exceptions []string
	for _, rule := range caller.Rules {
		within := len(rule.Prefix) > len(prefix) && strings.HasPrefix(rule.Prefix, prefix)
		if within && (rule.Right != "none") != reads {
			exceptions = append(exceptions, strconv.Quote(rule.Prefix))
		}
	}
	switch {
	case reads && len(exceptions) == 0:
		return "", nil
	case reads:
		return fmt.Sprintf("locks that %s may not read are not shown: those that begin with %s", caller.Name, strings.Join(exceptions, ", ")), nil
	case len(exceptions) > 0:
		return fmt.Sprintf("only the locks that %s may read are shown: those that begin with %s", caller.Name, strings.Join(exceptions, ", ")), nil
	}
	return "", cli.PlainError{Cause: client.ErrDenied, Text: fmt.Sprintf(
		"%s may not read any lock that begins with %q. The service's access file grants the read right; or ask as another caller, with --bearer-token-file or %s",
		caller.Name, prefix, varBearerToken)}
}

func printLocks(w io.Writer, held []wire.Lock) error {
	if len(held) == 0 {
		_, err := fmt.Fprintln(w, "no locks are held")
		return err
	}
	return lockTable(held).Write(w)
}

func lockTable(held []wire.Lock) *screen.Table {
	table := &screen.Table{}
	table.Row("RESOURCE", "HOLDER", "TOKEN", "ENDS IN", "HELD FOR", "WAITING")
	for _, lock := range held {
		table.Row(lock.Resource, holderOf(lock), strconv.FormatInt(lock.FencingToken, 10),
			msOf(lock.RemainingMS), msOf(lock.HeldMS), strconv.Itoa(lock.Waiters))
	}
	return table
}

func holderOf(lock wire.Lock) string {
	if lock.Holder == nil {
		return "-"
	}
	return cli.OrDash(*lock.Holder)
}

func msOf(ms *int64) string {
	if ms == nil {
		return "-"
	}
	return msInWords(*ms)
}

// msInWords formats a time in milliseconds; from one second on, in whole seconds.
func msInWords(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d >= time.Second {
		d = d.Truncate(time.Second)
	}
	return d.String()
}
