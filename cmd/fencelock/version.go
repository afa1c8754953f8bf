package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  fencelock version",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			details := []string{runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			if commit := vcs("revision"); commit != "" {
				details = append([]string{"commit " + commit + " of " + vcs("time")}, details...)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "fencelock %s (%s)\n", version(), strings.Join(details, ", "))
			return err
		},
	}
}

// version is the module's version, or the commit of a build from a checkout.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	if commit := vcs("revision"); commit != "" {
		return commit[:min(12, len(commit))]
	}
	return "devel"
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
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "fencelock_build_info",
		Help:        "1, with the version as a label.",
		ConstLabels: prometheus.Labels{"version": version()},
	}, func() float64 { return 1 })
}
