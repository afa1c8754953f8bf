package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
)

func nodesCommand() *cobra.Command {
	var output string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Show which nodes of a running server can vote, which cannot, and why",
		Long: `Show the nodes as a running server sees them now (/readyz): which can vote, which
cannot, why, and for how long.

Exit codes: 0; 1 if the server cannot grant locks or, with --wait, if a node does not
vote in time; 69 if no server responds, so that the nodes' state is unknown; 77 if the
server does not know the caller; 2 for wrong usage.`,
		Example: "  fencelock nodes\n  fencelock nodes --wait 2m            # before the next node is restarted\n  fencelock nodes --url http://10.0.0.7:8080 -o json",
		Args:    cli.NoArgs,
	}
	server := connect(cmd)
	cli.OutputFlag(cmd, &output)
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait until all nodes vote, for at most this long")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := allVoting(cmd.Context(), wait, server.ready)
		if err != nil {
			return err
		}
		show := printNodes
		if output == "json" {
			show = func(w io.Writer, r wire.Ready) error { return cli.PrintJSON(w, r) }
		}
		if err := show(cmd.OutOrStdout(), r); err != nil {
			return err
		}
		switch {
		case !r.Ready:
			return errors.New("the server grants nothing: " + r.Reason)
		case wait > 0 && len(r.Nodes) == 0:
			return errors.New("it is unknown whether all nodes vote: the server shows its nodes only to callers that it knows. Set --bearer-token-file or " + varBearerToken)
		case wait > 0 && r.Voting < len(r.Nodes):
			return fmt.Errorf("after %s only %d of %d nodes vote. The table says what the others wait for", wait, r.Voting, len(r.Nodes))
		}
		return nil
	}
	return cmd
}

// allVoting asks until all nodes vote or the wait has passed, and returns the last response.
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
		if r.Sets != nil {
			if err := printSets(w, r.Sets); err != nil {
				return err
			}
		}
		_, err := fmt.Fprintf(w, "%d vote, %d are a quorum; the server shows its nodes only to callers that it knows: set --bearer-token-file or %s\n", r.Voting, r.Quorum, varBearerToken)
		return err
	}
	table := &screen.Table{}
	row := func(set string, cells ...string) {
		if r.Sets != nil {
			cells = slices.Insert(cells, 0, set)
		}
		table.Row(cells...)
	}
	row("SET", "NODE", "STATE", "FOR", "WAIT", "REASON")
	for _, n := range r.Nodes {
		wait := "-"
		if n.WaitMS > 0 {
			wait = msInWords(n.WaitMS)
		}
		set := slices.IndexFunc(r.Sets, func(s wire.NodeSet) bool { return slices.Contains(s.Nodes, n.Name) })
		row(strconv.Itoa(set+1), n.Name, n.State, msInWords(n.SinceMS), wait, cli.OrDash(n.Reason))
	}
	if err := table.Write(w); err != nil {
		return err
	}
	if r.Sets != nil {
		return printSets(w, r.Sets)
	}
	_, err := fmt.Fprintf(w, "%d of %d vote, %d are a quorum\n", r.Voting, len(r.Nodes), r.Quorum)
	return err
}

// printSets prints for each node set how many nodes vote.
func printSets(w io.Writer, sets []wire.NodeSet) (err error) {
	for i, s := range sets {
		total, reason := "", ""
		if s.Nodes != nil {
			total = fmt.Sprintf(" of %d", len(s.Nodes))
		}
		if s.Reason != "" {
			reason = ": " + screen.Visible(s.Reason)
		}
		_, failed := fmt.Fprintf(w, "set %d: %d%s vote, %d are a quorum%s\n", i+1, s.Voting, total, s.Quorum, reason)
		err = errors.Join(err, failed)
	}
	return err
}

// unhealthy returns err with exit code 1, the only one that container runtimes accept for an unhealthy
// state.
func unhealthy(err error) error {
	if _, wrong := errors.AsType[cli.UsageError](err); err == nil || wrong {
		return err
	}
	return cli.CodeError{Err: err, Code: cli.ExitFailed}
}

func healthcheckCommand() *cobra.Command {
	var live bool
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Exit with 0 if a running server can grant locks, for probes of containers",
		Long: `Exit with 0 if a server (by default the one on FENCELOCK_LISTEN) can grant locks
(/readyz), and with 1 if not. It is for HEALTHCHECK in a container, which has no curl.`,
		Example: "  fencelock healthcheck\n  fencelock healthcheck --live --url http://127.0.0.1:8080",
		Args:    cli.NoArgs,
	}
	server := connect(cmd)
	cmd.Flags().BoolVar(&live, "live", false, "only ask whether the process is up (/healthz)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if live {
			return unhealthy(server.live(cmd.Context()))
		}
		r, err := server.ready(cmd.Context())
		if err == nil && !r.Ready {
			err = errors.New("the server grants nothing: " + r.Reason)
		}
		return unhealthy(err)
	}
	return cmd
}
