package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cause"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/keyfile"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
	"github.com/fencelock/fencelock/storage/mysqlguard"
	"github.com/fencelock/fencelock/storage/pgguard"
)

// guardTimeout bounds the commands that change a database, including their wait for other sessions.
const guardTimeout = time.Minute

// GuardCommand returns the commands for the guard in an application's own Postgres or MariaDB.
func GuardCommand() *cobra.Command {
	guard := &cobra.Command{
		Use:   "guard",
		Short: "Install the guard in your Postgres or MariaDB, so that tables refuse stale writers",
		Args:  cli.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	guard.AddCommand(guardInstallCommand(), guardSQLCommand(), guardStatusCommand(), guardUninstallCommand(), guardProofKeysCommand())
	return guard
}

func guardInstallCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Create the schema fencing, or upgrade it to this version",
		Long: `Create the schema fencing, or upgrade it to this version. It touches nothing outside the schema.
The role needs CREATE on the database the first time, and to own the schema later.
Then, in SQL:

  SELECT fencing.protect('accounts', $$'accounts/' || id$$);`,
		Example: "  fencelock guard install --database-url postgres://owner@localhost/shop",
		Args:    cli.NoArgs,
	}
	url := guardURLFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		example := "SELECT fencing.protect('accounts', $$'accounts/' || id$$);"
		err := onGuardDatabase(cmd.Context(), *url, func(ctx context.Context, url string) error {
			if mysqlguard.IsURL(url) {
				example = `CALL fencing_protect('accounts', "CONCAT('accounts/', id)", 'strict');`
				return mysqlguard.Install(ctx, url)
			}
			return pgguard.Install(ctx, url)
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), "The guard is installed. Protect a table with: "+example)
		return err
	}
	return cmd
}

func guardSQLCommand() *cobra.Command {
	var mariadb bool
	cmd := &cobra.Command{
		Use:   "sql",
		Short: "Print what install does as SQL, for your own migrations",
		Example: `  fencelock guard sql | psql -v ON_ERROR_STOP=1 shop
  fencelock guard sql --mariadb | mariadb shop`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			script, err := mysqlguard.SQL(), error(nil)
			if !mariadb {
				script, err = pgguard.SQL()
			}
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), script)
			return err
		},
	}
	cmd.Flags().BoolVar(&mariadb, "mariadb", false, "for MariaDB and its client, not for Postgres")
	return cmd
}

func guardStatusCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the protected tables: refused writes, problems, and who may write without tokens",
		Long: `Show what the guard protects and what it has refused, as the view fencing.status does.
REFUSED counts stale claims and writes, also those whose transaction was rolled back.
UNFENCED counts writes without a token: refused in the modes strict and inserts, accepted
in the mode migrating and in transactions that called fencing.unguarded.
Exits with 1 if something is missing from the protection of a table.`,
		Example: "  fencelock guard status --database-url postgres://owner@localhost/shop",
		Args:    cli.NoArgs,
	}
	url := guardURLFlag(cmd)
	cli.OutputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return onGuardDatabase(cmd.Context(), *url, func(ctx context.Context, url string) error {
			if mysqlguard.IsURL(url) {
				return mariaStatus(ctx, cmd.OutOrStdout(), url, output)
			}
			status, err := pgguard.ReadStatus(ctx, url)
			if err != nil {
				return fmt.Errorf("read fencing.status: %w", err)
			}
			return printGuardStatus(cmd.OutOrStdout(), status, output)
		})
	}
	return cmd
}

func printGuardStatus(w io.Writer, status pgguard.Status, output string) error {
	var incomplete error
	for _, t := range status.Tables {
		if t.Problem != "" {
			incomplete = errors.New("something is missing from the protection")
		}
	}
	if output == "json" {
		return cmp.Or(cli.PrintJSON(w, status), incomplete)
	}
	table := &screen.Table{}
	table.Row("TABLE", "MODE", "REFUSED", "UNFENCED", "PROBLEM")
	for _, t := range status.Tables {
		table.Row(t.Name, t.Mode, strconv.FormatInt(t.Refused, 10), strconv.FormatInt(t.Unfenced, 10), cli.OrDash(t.Problem))
	}
	lines := table.Lines(0)
	for _, r := range status.Roles {
		lines = append(lines, fmt.Sprintf("role %s may call %s: %d transactions without tokens", screen.Visible(r.Name), cli.OrDash(screen.Visible(r.May)), r.Transactions))
	}
	lines = append(lines, fmt.Sprintf("%d resources, highest mark %d, %d stale claims and writes refused in all", status.Resources, status.Highest, status.Refused))
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return cmp.Or(err, incomplete)
}

func guardUninstallCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the schema fencing: all protection, all marks, and the guarded records",
		Long: `Remove the schema fencing with everything in it: the protection of every table, all marks, and
the service's guarded records if they are in this database. Tables stay as they are.
A holder of an old token can write again afterwards.`,
		Example: "  fencelock guard uninstall --yes --database-url postgres://owner@localhost/shop",
		Args:    cli.NoArgs,
	}
	url := guardURLFlag(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !yes {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "This removes the protection of every table, all marks and the guarded records.")
			if err := cli.Confirm(cmd, "uninstall"); err != nil {
				return err
			}
		}
		return onGuardDatabase(cmd.Context(), *url, func(ctx context.Context, url string) error {
			if mysqlguard.IsURL(url) {
				return mysqlguard.Uninstall(ctx, url)
			}
			return pgguard.Uninstall(ctx, url)
		})
	}
	return cmd
}

func guardProofKeysCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "proof-keys",
		Short: "Give the guard the keys that verify proofs",
		Long: `Give the guard in Postgres the keys of FENCELOCK_PROOF_KEY_FILE, in place of earlier ones, so that
it can verify the fencing_proof of leases. Run it again when the file has changed. Then, in SQL:

  SELECT fencing.protect('accounts', $$'accounts/' || id$$, proof => true);`,
		Example: "  fencelock guard proof-keys --file proof.keys --database-url postgres://owner@localhost/shop",
		Args:    cli.NoArgs,
	}
	url := guardURLFlag(cmd)
	cmd.Flags().StringVar(&file, "file", "", "the key file (default FENCELOCK_PROOF_KEY_FILE)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		path := cmp.Or(file, os.Getenv("FENCELOCK_PROOF_KEY_FILE"))
		if path == "" {
			return cli.UsageError{Err: errors.New("no key file is given: set --file or FENCELOCK_PROOF_KEY_FILE")}
		}
		keys, err := keyfile.Read(path)
		if err != nil {
			return cli.UsageError{Err: err}
		}
		return onGuardDatabase(cmd.Context(), *url, func(ctx context.Context, url string) error {
			if mysqlguard.IsURL(url) {
				return cli.UsageError{Err: errors.New("the guard in MariaDB can't verify proofs: use Postgres")}
			}
			return pgguard.SetProofKeys(ctx, url, keys)
		})
	}
	return cmd
}

func guardURLFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("database-url", "",
		"postgres:// or mysql:// URL; a URL on the command line appears in the process list, so prefer FENCELOCK_DATABASE_URL or FENCELOCK_DATABASE_URL_FILE for one with a password")
}

func onGuardDatabase(ctx context.Context, url string, do func(context.Context, string) error) error {
	url, err := guardURL(url)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, guardTimeout)
	defer cancel()
	err = do(ctx, url)
	if failed, ok := errors.AsType[*net.OpError](err); ok && mysqlguard.IsURL(url) {
		return cli.PlainError{Text: "the database " + cause.InWords(failed) + " (--database-url, FENCELOCK_DATABASE_URL)", Cause: err}
	}
	if failed, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return cli.PlainError{Text: "the database " + cause.OfPostgres(failed) + " (--database-url, FENCELOCK_DATABASE_URL)", Cause: err}
	}
	return err
}

// guardURL returns the flag's URL, or else the URL that the service would use.
func guardURL(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if url := os.Getenv("FENCELOCK_DATABASE_URL"); url != "" {
		return url, nil
	}
	if path := os.Getenv("FENCELOCK_DATABASE_URL_FILE"); path != "" {
		content, err := os.ReadFile(path) //nolint:gosec // the operator names the file
		if err != nil {
			return "", fmt.Errorf("FENCELOCK_DATABASE_URL_FILE: %w", err)
		}
		return strings.TrimSpace(string(content)), nil
	}
	return "", cli.UsageError{Err: errors.New("no database is given: set --database-url, FENCELOCK_DATABASE_URL or FENCELOCK_DATABASE_URL_FILE")}
}
