package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/api/wire"
)

func nodesCommand() *cobra.Command {
	var output string
	var server *connection
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Show the nodes of a running server: which may vote, which not, why, and for how long yet",
		Long: `Show the nodes as a running server sees them (/readyz): which may vote, which not,
why, and for how long yet. Exits with 1 while the server cannot grant locks.`,
		Example: "  fencelock nodes\n  fencelock nodes --server http://10.0.0.7:8080 -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			r, err := server.ready(cmd.Context())
			if err != nil {
				return err
			}
			if err := printNodes(cmd.OutOrStdout(), r, output); err != nil {
				return err
			}
			if !r.Ready {
				return errors.New("the server grants nothing: " + r.Reason)
			}
			return nil
		},
	}
	server = connect(cmd)
	outputFlag(cmd, &output)
	return cmd
}

func printNodes(w io.Writer, r wire.Ready, output string) error {
	if output == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	if len(r.Nodes) == 0 {
		_, err := fmt.Fprintf(w, "%d vote, %d are a quorum; the nodes are shown to callers that the server knows: set FENCELOCK_BEARER_TOKEN_FILE\n", r.Voting, r.Quorum)
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "NODE\tSTATE\tFOR\tWAIT\tREASON") // tabwriter keeps the error for Flush
	for _, n := range r.Nodes {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", n.Name, n.State, inWords(n.SinceMS), waitInWords(n.WaitMS), orDash(n.Reason))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d of %d vote, %d are a quorum\n", r.Voting, len(r.Nodes), r.Quorum)
	return err
}

func inWords(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d >= time.Second {
		d = d.Truncate(time.Second)
	}
	return d.String()
}

func waitInWords(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return inWords(ms)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
