package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
	"github.com/fencelock/fencelock/storage/mysqlguard"
)

// mariaStatus prints the status of the guard in a MariaDB. It counts refusals for the whole database, not
// for each table.
func mariaStatus(ctx context.Context, w io.Writer, url, output string) error {
	status, err := mysqlguard.ReadStatus(ctx, url)
	if err != nil {
		return fmt.Errorf("read the status of the guard: %w", err)
	}
	var incomplete error
	table := &screen.Table{}
	table.Row("TABLE", "MODE", "UNFENCED", "PROBLEM")
	for _, t := range status.Tables {
		if t.Problem != "" {
			incomplete = errors.New("something is missing from the protection")
		}
		table.Row(t.Name, t.Mode, strconv.FormatInt(t.Unfenced, 10), cli.OrDash(t.Problem))
	}
	if output == "json" {
		return cmp.Or(cli.PrintJSON(w, status), incomplete)
	}
	for _, line := range table.Lines(0) {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	for _, r := range status.Roles {
		if _, err := fmt.Fprintf(w, "user %s wrote without tokens %d times\n", screen.Visible(r.Name), r.Times); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(w, "%d resources, highest mark %d, %d stale claims refused in all\n", status.Resources, status.Highest, status.Refused)
	return cmp.Or(err, incomplete)
}
