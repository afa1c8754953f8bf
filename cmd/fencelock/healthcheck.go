package main

import (
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
)

func healthcheckCommand() *cobra.Command {
	var server *connection
	var live bool
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask a server, by default the one on FENCELOCK_LISTEN, whether it can grant locks",
		Long: `Ask a server, by default the one on FENCELOCK_LISTEN, whether it can grant locks
(/readyz), and exit with 0 if so, with 1 if not. For a container's HEALTHCHECK,
which has no curl.`,
		Example: "  fencelock healthcheck\n  fencelock healthcheck --live --server http://127.0.0.1:8080",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if live {
				status, _, err := server.get(cmd.Context(), "/healthz")
				if err == nil && status != http.StatusOK {
					err = fmt.Errorf("the server answered %d to /healthz", status)
				}
				return err
			}
			r, err := server.ready(cmd.Context())
			if err == nil && !r.Ready {
				err = fmt.Errorf("not ready: %s", r.Reason)
			}
			return err
		},
	}
	server = connect(cmd)
	cmd.Flags().BoolVar(&live, "live", false, "only ask whether the process answers (/healthz)")
	return cmd
}
