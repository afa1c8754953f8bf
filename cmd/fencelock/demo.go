package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/version"
	"github.com/fencelock/fencelock/internal/demo"
)

// The bounds of --ttl. With a shorter TTL, a busy machine could not stop a worker in time.
const (
	demoMinTTL = 500 * time.Millisecond
	demoMaxTTL = time.Minute
)

type demoFlags struct {
	html, redis, databaseURL string
	ttl                      time.Duration
}

func demoCommand() *cobra.Command {
	var flags demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show what a lock alone cannot prevent and a token does, with real processes",
		Long: `Show with real processes what a lock alone cannot prevent, and what the fencing
token does about it.

Two workers deposit into the same account under the same lock. The first one is
stopped (SIGSTOP) between the check of its lease and its write, until its lease
has expired; the second one takes over and deposits; the first one continues.
Round one keeps the account in a file, which takes every write: a deposit is lost.
Round two keeps it in a guarded record: the late write is refused (412), and
nothing is lost.

The server is started for the demonstration, on a free port, with its data in a
temporary directory. With --redis and --database-url it uses those instead:
then the resource is fencelock-demo/…/accounts/alice, and one guarded record of
that name stays in the database. FENCELOCK_… variables are ignored. Redis
nodes that were used before may first have to wait until old leases have expired.

Exits with 0 only if round one lost an update and round two prevented it.`,
		Example: "  fencelock demo\n  fencelock demo --html demo.html\n" +
			"  fencelock demo --redis r1:6379,r2:6379,r3:6379 --database-url postgres://user@host/database",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDemo(cmd.Context(), flags, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&flags.html, "html", "", "also write what happened to this file, as an HTML page")
	cmd.Flags().StringVar(&flags.redis, "redis", "", "Redis nodes, as in FENCELOCK_REDIS_ADDRS (default: one embedded node)")
	cmd.Flags().StringVar(&flags.databaseURL, "database-url", "", "Postgres for the guarded record, as in FENCELOCK_DATABASE_URL (default: a file)")
	cmd.Flags().DurationVar(&flags.ttl, "ttl", 2*time.Second, "the workers' leases, from 500ms to 1m")
	return cmd
}

// demoWorkerCommand is the command that the demonstration's workers run.
func demoWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "demo-worker",
		Short:  "Be a worker of the demonstration",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo.RunWorker(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

func runDemo(ctx context.Context, flags demoFlags, stdout io.Writer) error {
	if flags.ttl < demoMinTTL || flags.ttl > demoMaxTTL || flags.ttl%time.Millisecond != 0 {
		return cli.UsageError{Err: fmt.Errorf("--ttl %s: must be from %s to %s, in whole milliseconds", flags.ttl, demoMinTTL, demoMaxTTL)}
	}
	page, err := openPage(flags.html)
	if err != nil {
		return cli.UsageError{Err: err}
	}
	defer page.discard()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	// Closing the terminal or the pipe also ends the processes.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	live := cli.IsTerminal(stdout) && os.Getenv("TERM") != "dumb"
	report, err := demo.Run(ctx, demo.Options{
		Program:     program,
		Version:     version.String(),
		Redis:       flags.redis,
		DatabaseURL: flags.databaseURL,
		TTL:         flags.ttl,
		Out:         stdout,
		Color:       live && os.Getenv("NO_COLOR") == "", // https://no-color.org
		Live:        live,
		ASCII:       !speaksUTF8(),
		Width:       columnsOf(stdout),
	})
	if err != nil && ctx.Err() != nil {
		return errors.New("the demonstration was interrupted; its processes have been ended")
	}
	if err != nil {
		return err
	}
	if err := page.write(report, stdout); err != nil {
		return err
	}
	if !report.OK() {
		return errors.New("the demonstration did not behave as described")
	}
	return nil
}

// speaksUTF8 reports whether the locale uses UTF-8, by the rules of POSIX. If no locale is set, as in
// containers, it assumes UTF-8, which most terminals show.
func speaksUTF8() bool {
	locale := cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG"), "UTF-8")
	locale = strings.ToUpper(strings.ReplaceAll(locale, "-", ""))
	return strings.Contains(locale, "UTF8")
}

// columnsOf returns the width of a terminal, 0 for anything else.
func columnsOf(out io.Writer) int {
	terminal, ok := out.(*os.File)
	if !ok || !cli.IsTerminal(out) {
		return 0
	}
	width, _ := screen.Size(terminal)
	return width
}

// demoPage is the file of --html. It is opened before the run, so that a wrong name is reported before
// the demonstration begins.
type demoPage struct {
	*os.File      // nil without --html
	created  bool // this process created the file, and it is still empty
}

func openPage(path string) (*demoPage, error) {
	if path == "" {
		return &demoPage{}, nil
	}
	_, err := os.Stat(path)
	file, errOpen := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644) //nolint:gosec // the page is meant to be read by others
	if errOpen != nil {
		return nil, fmt.Errorf("--html: %w", errOpen)
	}
	return &demoPage{File: file, created: errors.Is(err, os.ErrNotExist)}, nil
}

// write replaces the content of the file.
func (p *demoPage) write(report demo.Report, stdout io.Writer) error {
	if p.File == nil {
		return nil
	}
	// A device or a pipe cannot be truncated, and need not be.
	if info, err := p.Stat(); err == nil && info.Mode().IsRegular() {
		if err := p.Truncate(0); err != nil {
			return err
		}
	}
	p.created = false
	_, err := fmt.Fprintf(stdout, "\nThe page is in %s.\n", p.Name())
	return errors.Join(demo.WriteHTML(p.File, report), p.Close(), err)
}

// discard removes the file if nothing was written to it.
func (p *demoPage) discard() {
	_ = p.Close() // also works without a file
	if p.created {
		_ = os.Remove(p.Name())
	}
}
