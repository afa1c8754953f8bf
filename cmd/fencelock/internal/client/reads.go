package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
)

func whoAmICommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "whoami",
		Short: "Show the name by which the server knows you, and what you may do",
		Long: `Show the name by which the server knows you, and your rights: the first rule whose
prefix matches the resource decides. Without access control callers have no names, and
each may do everything.

Exit codes: 0; 69 if no server responds; 77 if the server does not know you; 2 for wrong
usage.`,
		Example: "  fencelock whoami\n  FENCELOCK_BEARER_TOKEN_FILE=ci.token fencelock whoami -o json",
		Args:    cli.NoArgs,
	}
	server := connect(cmd)
	cli.OutputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		caller, err := server.whoAmI(cmd.Context())
		if err != nil {
			return err
		}
		if output == "json" {
			return cli.PrintJSON(cmd.OutOrStdout(), caller)
		}
		return printCaller(cmd.OutOrStdout(), caller)
	}
	return cmd
}

func printCaller(w io.Writer, caller wire.Caller) error {
	name := caller.Name
	if name == "" {
		name = "(no access control)"
	}
	table := &screen.Table{}
	table.Row("NAME", "PREFIX", "RIGHT")
	for _, rule := range caller.Rules {
		table.Row(name, strconv.Quote(rule.Prefix), rule.Right)
	}
	return table.Write(w)
}

// historyKept is the number of attempts that a server keeps of each record.
const historyKept = 100

func historyCommand() *cobra.Command {
	var output string
	var limit int
	cmd := &cobra.Command{
		Use:   "history RESOURCE",
		Short: "Show the latest writes and claims of a guarded record, refused ones too",
		Long: `Show the latest writes and claims of a guarded record, the newest first, refused ones too.
Writes to your own tables are not in it.

Exit codes: 0, also for a record that was never written; 69 if no server responds; 77 without
the right to read; 2 for wrong usage.`,
		Example: "  fencelock history accounts/alice\n  fencelock history accounts/alice -o json | jq '.[] | select(.accepted | not)'",
		Args:    cli.ExactArgs(1, "RESOURCE"),
	}
	server := connect(cmd)
	cli.OutputFlag(cmd, &output)
	cmd.Flags().IntVar(&limit, "limit", historyKept, fmt.Sprintf("at most this many, 1 to %d: a server keeps the last %[1]d of a resource", historyKept))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if limit < 1 || limit > historyKept {
			return cli.UsageError{Err: fmt.Errorf("--limit is %d: use 1 to %d, which a server keeps", limit, historyKept)}
		}
		var page wire.HistoryPage
		query := url.Values{"resource": {args[0]}, "limit": {strconv.Itoa(limit)}}
		if err := server.read(cmd.Context(), "/history?"+query.Encode(), &page); err != nil {
			return err
		}
		if output == "json" {
			return cli.PrintJSON(cmd.OutOrStdout(), page.Attempts)
		}
		return printAttempts(cmd.OutOrStdout(), page.Attempts)
	}
	return cmd
}

func printAttempts(w io.Writer, attempts []wire.Attempt) error {
	if len(attempts) == 0 {
		_, err := fmt.Fprintln(w, "the record was never written or claimed")
		return err
	}
	table := &screen.Table{}
	table.Row("AT", "WHAT", "TOKEN", "HIGHEST", "VERSION", "RESULT")
	for _, a := range attempts {
		result := "accepted"
		if !a.Accepted {
			result = "refused"
		}
		table.Row(a.At.UTC().Format(time.RFC3339), a.Kind, strconv.FormatInt(a.FencingToken, 10), strconv.FormatInt(a.HighestToken, 10), strconv.FormatInt(a.Version, 10), result)
	}
	return table.Write(w)
}

// read requests JSON. Its error is client.ErrUnavailable in words, a refusal, or a usage error.
func (c *connection) read(ctx context.Context, path string, into any) error {
	status, body, err := c.get(ctx, path)
	switch {
	case err != nil:
		return err
	case status != http.StatusOK, json.Unmarshal(body, into) != nil:
		return refusal(status, body)
	}
	return nil
}

func eventsCommand() *cobra.Command {
	var output string
	var recent int
	cmd := &cobra.Command{
		Use:   "events [PREFIX]",
		Short: "Follow what happens to locks, records and nodes, as it happens",
		Long: `Follow what happens in the whole cluster until Ctrl-C: granted, extended, released and
ended leases, waiting requests, refused stale writes, and the states of nodes; all, or
those of resources that begin with PREFIX. An event may be late, repeated or missing:
it is for people and dashboards, not a lock primitive.

With -o json each event is a line of JSON, with its kind in "event".

Exit codes: 0 after Ctrl-C; 69 if no server responds, or when the stream ends; 77 if the
server does not know you; 2 for wrong usage.`,
		Example: "  fencelock events\n  fencelock events orders/ --recent 20 -o json | jq .event",
		Args:    cli.MaxArgs(1, "PREFIX"),
	}
	server := connect(cmd)
	cli.OutputFlag(cmd, &output)
	cmd.Flags().IntVar(&recent, "recent", 0, "start with this many past events, at most 1000")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		query := url.Values{"prefix": {strings.Join(args, "")}, "recent": {strconv.Itoa(recent)}}
		show := showEvent
		if output == "json" {
			show = showEventAsJSON
		}
		err := server.stream(cmd.Context(), "/events?"+query.Encode(), func(kind string, data []byte) error {
			return show(cmd.OutOrStdout(), kind, data)
		})
		if cmd.Context().Err() != nil {
			err = nil // after Ctrl-C
		}
		return err
	}
	return cmd
}

func showEventAsJSON(w io.Writer, kind string, data []byte) error {
	_, err := w.Write(screen.JSON(fmt.Appendf(nil, "{\"event\":%q,%s\n", kind, data[1:])))
	return err
}

func showEvent(w io.Writer, kind string, data []byte) error {
	var e wire.Event
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	about := e.Resource
	if about == "" {
		about = e.Node
	}
	text := []string{e.At.Local().Format(time.RFC3339), kind, about}
	if e.FencingToken > 0 {
		text = append(text, fmt.Sprintf("token %d", e.FencingToken))
	}
	if e.Holder != "" {
		text = append(text, "holder "+e.Holder)
	}
	if e.State != "" {
		text = append(text, e.Was+" → "+e.State)
	}
	if e.Reason != "" {
		text = append(text, e.Reason)
	}
	_, err := fmt.Fprintln(w, screen.Visible(strings.Join(text, "  ")))
	return err
}
