// Command fencelock is a lock service that hands out fencing tokens, and its tools.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	_ "golang.org/x/crypto/x509roots/fallback" // Mozilla's authorities, for an image without any; the system's own are preferred

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/operator"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/server"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go endOrderly(signals, cancel)
	os.Exit(cli.Run(ctx, rootCommand()))
}

// endOrderly cancels at the first signal. Before that it restores the default, so that a second signal
// ends the process at once, even one that came in the meantime.
func endOrderly(signals chan os.Signal, cancel func()) {
	<-signals
	signal.Stop(signals)
	select {
	case second := <-signals:
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Signal(second)
		}
	default:
	}
	cancel()
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "fencelock",
		Short:         "A lock service with fencing tokens",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cli.NoArgs,
	}
	showVersion := root.Flags().Bool("version", false, "print the version")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *showVersion {
			return printVersion(cmd.OutOrStdout())
		}
		return cmd.Help()
	}
	root.SetFlagErrorFunc(cli.FlagError)
	root.SetUsageFunc(usage)
	grouped(root, groupLocks, "Locks", client.LockCommands()...)
	grouped(root, groupState, "What a server knows", client.StateCommands()...)
	grouped(root, groupServer, "Servers", append(server.Commands(client.Variables()), operator.Commands()...)...)
	grouped(root, groupGuard, "Guards", operator.GuardCommand(), demoCommand())
	root.AddCommand(client.WatchdogCommand(), demoWorkerCommand(), versionCommand(), client.ConnectionCommand())
	return root
}
