package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/check"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
	"github.com/fencelock/fencelock/storage/redisnode"
)

func checkCommand(clientVariables []string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check a configuration and all it points to, before a server starts",
		Long: `Check the configuration in this environment, which fencelock serve would use, and what it
points to; report what is wrong, what is risky, and what to do.
It changes nothing anywhere, and may run while servers run.

It looks at: the variables, misspelt ones too; the ports; the Redis nodes (whether they respond and may
vote, the list of nodes, the node sets and the longest TTL in their records, memory policy and
limit, persistence, rights of the user, clocks, round trips, two addresses of one server, two
servers behind one address);
Postgres (version, encoding, role and its rights, the schema fencing, settings that can lose
commits); etcd (version, members, TLS, the keys below the prefix); the access file and key
files; the dates of certificates; the permissions of files with secrets.

Exit codes: 0 if it finds nothing, 1 if something is wrong, 3 if something is risky and
nothing is wrong, 2 for wrong usage.`,
		Example: "  fencelock check\n  FENCELOCK_REDIS_ADDRS=r1:6379,r2:6379,r3:6379 fencelock check -o json\n  fencelock check || [ $? -eq 3 ]    # risks are accepted",
		Args:    cli.NoArgs,
	}
	cli.OutputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		redisnode.LogLibrary(slog.New(slog.DiscardHandler))
		report := inspect(cmd.Context(), clientVariables)
		show := printReport
		if output == "json" {
			show = func(w io.Writer, r *check.Report) error { return cli.PrintJSON(w, r) }
		}
		return errors.Join(show(cmd.OutOrStdout(), report), verdict(report))
	}
	return cmd
}

// inspect checks this environment. If the configuration itself is invalid, it does not check what the
// configuration refers to.
func inspect(ctx context.Context, clientVariables []string) *check.Report {
	report := &check.Report{Looked: []string{"the variables"}, Findings: []check.Finding{}}
	for _, v := range config.MisspeltVariables(clientVariables) {
		report.Add(check.Wrong, v.Name, "there is no such variable, so it is ignored", "did you mean "+v.Closest+"?")
	}
	cfg, err := config.Load()
	if err != nil {
		_, lines, _ := strings.Cut(err.Error(), "\n")
		for line := range strings.Lines(lines) {
			variable, problem, _ := strings.Cut(strings.TrimSpace(line), ": ")
			report.Add(check.Wrong, variable, problem, "fencelock serve --help lists what is allowed")
		}
		return report
	}
	if err := CheckFiles(cfg); err != nil {
		report.Add(check.Wrong, "the access file and the key files", err.Error(), "correct the file that it names: the server does not start with it")
	}
	report.Run(ctx, cfg, time.Now())
	report.Sort()
	return report
}

func verdict(report *check.Report) error {
	switch {
	case report.Count(check.Wrong) > 0:
		return cli.CodeError{Code: cli.ExitFailed}
	case len(report.Findings) > 0:
		return cli.CodeError{Code: cli.ExitRisky}
	}
	return nil
}

func printReport(w io.Writer, report *check.Report) error {
	var b strings.Builder
	var last check.Finding
	for _, f := range report.Findings {
		head := fmt.Sprintf("%s  %s: ", f.Level, screen.Visible(f.Subject))
		if f.Level == last.Level && f.Subject == last.Subject { // the subject is printed already
			head = "       "
		}
		last = f
		fmt.Fprintf(&b, "%s%s\n       → %s\n", head, screen.VisibleLines(f.Text), screen.Visible(f.Do))
	}
	fmt.Fprintf(&b, "looked at %s: %d wrong, %d risky\n", screen.Visible(strings.Join(report.Looked, ", ")), report.Count(check.Wrong), report.Count(check.Risky))
	_, err := io.WriteString(w, b.String())
	return err
}
