package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/redlock/settings"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// bootstrap has the options of the command.
type bootstrap struct {
	isNew, force, yes bool
	timeout           time.Duration // 0 for a time that fits the configuration
}

func bootstrapCommand() *cobra.Command {
	var f bootstrap
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Start a cluster for the first time, or again after most nodes lost their data",
		Long: `Start the cluster of FENCELOCK_REDIS_ADDRS or FENCELOCK_STORE: for the first time, or again after
a majority of its nodes lost their data (a restart without persistence, a promoted standby). With FENCELOCK_RECOVERY=auto
servers do this by themselves; with manual they grant nothing before this command. Servers may run
meanwhile.

It waits until every earlier lease has expired (the longest TTL in use; only --new on empty nodes
shortens this), shows the remaining time on stderr, and exits with 0 when a quorum may vote. Run it
with the configuration of the servers, including the guard's.

--force also gives up the nodes that do not respond. It is for machines that will never come back:
if one does come back, tokens may repeat.`,
		Example: "  FENCELOCK_REDIS_ADDRS=r1:6379,r2:6379,r3:6379 fencelock bootstrap\n  fencelock bootstrap --new",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load()
			switch {
			case err != nil:
				return cli.UsageError{Err: err}
			case len(cfg.RedisSets) == 0 && cfg.Store == "":
				return cli.UsageError{Err: errors.New("neither FENCELOCK_REDIS_ADDRS nor FENCELOCK_STORE is set: there is no cluster to bootstrap, and the embedded file needs none")}
			case f.isNew && f.force:
				return cli.UsageError{Err: errors.New("--new needs every node to respond, and --force is for nodes that are gone: choose one")}
			}
			t := newClusterTool(cmd, cfg)
			err = f.run(cmd, t)
			t.record("bootstrap", err, slog.Bool("new", f.isNew), slog.Bool("force", f.force))
			return err
		},
	}
	cmd.Flags().BoolVar(&f.isNew, "new", false, "the cluster is new: don't wait if every node is reachable and empty")
	cmd.Flags().BoolVar(&f.force, "force", false, "the nodes that do not respond will never come back: do without them")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "with --force: don't ask for confirmation")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "give up after this long (default twice FENCELOCK_MAX_TTL and a minute)")
	return cmd
}

func (f bootstrap) run(cmd *cobra.Command, t clusterTool) error {
	timeout := f.timeout
	if timeout <= 0 {
		timeout = 2*t.cfg.MaxTTL + time.Minute
	}
	if f.force {
		if err := f.confirm(cmd, t); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	change := func(c *sets.Config) { c.Recovery, c.New, c.Force = settings.RecoveryAuto, f.isNew, f.force }
	err := t.with(ctx, change, func(locker *sets.Locker) error { return t.await(ctx, locker.Status, complete) })
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("given up after %s (--timeout): %w", timeout, err)
	}
	return err
}

// confirm shows the effect of --force on this cluster, and asks the operator to confirm it.
func (f bootstrap) confirm(cmd *cobra.Command, t clusterTool) error {
	var status lockcore.ClusterStatus
	ctx, cancel := context.WithTimeout(cmd.Context(), clusterLook)
	defer cancel()
	err := t.with(ctx, watching, func(locker *sets.Locker) error {
		<-ctx.Done()
		status = locker.Status()
		return cmd.Context().Err()
	})
	if err != nil {
		return err
	}
	var gone []string
	for _, n := range status.Nodes {
		if n.State == lockcore.NodeUnreachable {
			gone = append(gone, n.Name+": "+n.Reason)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	_, _ = fmt.Fprintf(t.out, "These nodes do not respond and are given up for good:\n  %s\n"+
		"If one of them comes back with its data, tokens that it granted may be granted again, and guards cannot\n"+
		"tell the two apart. Make sure that it never does: end the machine, or wipe its disk.\n", strings.Join(gone, "\n  "))
	if f.yes {
		return nil
	}
	return cli.Confirm(cmd, "give up")
}
