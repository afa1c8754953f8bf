package main

import (
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/version"
)

func versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  fencelock version",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output == "json" {
				id, date := version.Commit()
				return cli.PrintJSON(cmd.OutOrStdout(), map[string]string{
					"version": version.String(), "commit": id, "date": date, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
				})
			}
			return printVersion(cmd.OutOrStdout())
		},
	}
	cli.OutputFlag(cmd, &output)
	return cmd
}

func printVersion(w io.Writer) error {
	details := []string{runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
	if id, date := version.Commit(); id != "" {
		details = append([]string{"commit " + id + " of " + date}, details...)
	}
	_, err := fmt.Fprintf(w, "fencelock %s (%s)\n", version.String(), strings.Join(details, ", "))
	return err
}
