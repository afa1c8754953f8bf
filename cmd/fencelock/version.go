package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

// What a release's build says of itself, by -ldflags -X: a workspace has no version, and Go
// puts no commit into what it builds there. Empty otherwise.
var releaseVersion, releaseCommit, releaseDate string

func versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  fencelock version",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output == "json" {
				id, date := commit()
				return printJSON(cmd.OutOrStdout(), map[string]string{
					"version": version(), "commit": id, "date": date, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
				})
			}
			return printVersion(cmd.OutOrStdout())
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

func printVersion(w io.Writer) error {
	details := []string{runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
	if id, date := commit(); id != "" {
		details = append([]string{"commit " + id + " of " + date}, details...)
	}
	_, err := fmt.Fprintf(w, "fencelock %s (%s)\n", version(), strings.Join(details, ", "))
	return err
}

// version is the release's or the module's, or the commit of a build from a checkout.
func version() string {
	if releaseVersion != "" {
		return releaseVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	if id, _ := commit(); id != "" {
		return id[:min(12, len(id))]
	}
	return "devel"
}

// commit is what was built and when it was committed (RFC 3339, UTC), or empty: a module
// that go install fetched has a version, and no commit.
func commit() (id, date string) {
	if releaseCommit != "" {
		return releaseCommit, releaseDate
	}
	return vcs("revision"), vcs("time")
}

// vcs is what the build knows of its commit: its revision or time, or "".
func vcs(what string) string {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs."+what {
			return setting.Value
		}
	}
	return ""
}

// buildInfo names the version that runs.
func buildInfo() prometheus.Collector {
	id, date := commit()
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "fencelock_build_info",
		Help:        "1, with the version, its commit and the commit's date as labels; empty where the build does not know them.",
		ConstLabels: prometheus.Labels{"version": version(), "commit": id, "date": date},
	}, func() float64 { return 1 })
}
