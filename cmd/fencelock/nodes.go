package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/api/wire"
)

func nodesCommand() *cobra.Command {
	var output string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Show the nodes of a running server: which may vote, which not, why, and for how long yet",
		Long: `Show the nodes as a running server sees them (/readyz): which may vote, which not,
why, and for how long yet. The server observes the nodes at that moment. Exits with
1 while the server cannot grant locks, with --wait also while a node does not vote.`,
		Example: "  fencelock nodes\n  fencelock nodes --wait 2m            # before the next node is restarted\n  fencelock nodes --server http://10.0.0.7:8080 -o json",
		Args:    noArgs,
	}
	server := connect(cmd)
	outputFlag(cmd, &output)
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait until all nodes vote, for at most this long")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := allVoting(cmd.Context(), wait, server.ready)
		if err != nil {
			return err
		}
		show := printNodes
		if output == "json" {
			show = func(w io.Writer, r wire.Ready) error { return printJSON(w, r) }
		}
		if err := show(cmd.OutOrStdout(), r); err != nil {
			return err
		}
		switch {
		case !r.Ready:
			return errors.New("the server grants nothing: " + r.Reason)
		case wait > 0 && len(r.Nodes) == 0:
			return errors.New("it cannot be told whether all nodes vote: the server shows them only to callers that it knows (FENCELOCK_BEARER_TOKEN_FILE)")
		case wait > 0 && r.Voting < len(r.Nodes):
			return fmt.Errorf("%d of %d nodes vote after %s; the table says what the others wait for", r.Voting, len(r.Nodes), wait)
		}
		return nil
	}
	return cmd
}

// allVoting asks until all nodes vote, or the wait has passed, and gives the last answer.
func allVoting(ctx context.Context, wait time.Duration, ready func(context.Context) (wire.Ready, error)) (wire.Ready, error) {
	const pause = 200 * time.Millisecond
	for deadline := time.Now().Add(wait); ; {
		r, err := ready(ctx)
		if err == nil && r.Ready && (len(r.Nodes) == 0 || r.Voting == len(r.Nodes)) || time.Until(deadline) <= pause {
			return r, err
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func printNodes(w io.Writer, r wire.Ready) error {
	if len(r.Nodes) == 0 {
		_, err := fmt.Fprintf(w, "%d vote, %d are a quorum; the server shows its nodes only to callers that it knows: set FENCELOCK_BEARER_TOKEN_FILE\n", r.Voting, r.Quorum)
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "NODE\tSTATE\tFOR\tWAIT\tREASON") // tabwriter keeps the error for Flush
	for _, n := range r.Nodes {
		wait := "-"
		if n.WaitMS > 0 {
			wait = msInWords(n.WaitMS)
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", n.Name, n.State, msInWords(n.SinceMS), wait, orDash(n.Reason))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d of %d vote, %d are a quorum\n", r.Voting, len(r.Nodes), r.Quorum)
	return err
}

func healthcheckCommand() *cobra.Command {
	var live bool
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask a server, by default the one on FENCELOCK_LISTEN, whether it can grant locks",
		Long: `Ask a server, by default the one on FENCELOCK_LISTEN, whether it can grant locks
(/readyz), and exit with 0 if so, with 1 if not. For a container's HEALTHCHECK,
which has no curl.`,
		Example: "  fencelock healthcheck\n  fencelock healthcheck --live --server http://127.0.0.1:8080",
		Args:    noArgs,
	}
	server := connect(cmd)
	cmd.Flags().BoolVar(&live, "live", false, "only ask whether the process answers (/healthz)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if live {
			status, _, err := server.get(cmd.Context(), "/healthz")
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("the server answered %d to /healthz: is it a fencelock?", status)
			}
			return err
		}
		r, err := server.ready(cmd.Context())
		if err == nil && !r.Ready {
			err = errors.New("not ready: " + r.Reason)
		}
		return err
	}
	return cmd
}
