package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// rotateTimeout is how long a quorum may take to respond.
const rotateTimeout = 15 * time.Second

func secretCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secret",
		Short: "Replace the cluster's secret, which seals lease ids",
		Args:  cli.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(secretRotateCommand())
	return cmd
}

func secretRotateCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Give the nodes a new secret without ending leases",
		Long: `Give the nodes of FENCELOCK_REDIS_ADDRS or FENCELOCK_STORE, or of the embedded file, a new secret. Running servers use it
within seconds, and still accept lease ids and cursors under the previous one. (Stop a
server on the embedded file first: only one process at a time may use it.)

The secret before the current one is deleted. The command refuses to run while a lease under that secret
may be alive: for FENCELOCK_MAX_HOLD after the last rotation, or always if that is 0. --force rotates
anyway: holders of such leases get 404, and their locks expire with their TTL. So two
rotations, the second with --force, shut out everybody who knows a secret.

Run it with the configuration of the servers.`,
		Example: "  FENCELOCK_REDIS_ADDRS=r1:6379,r2:6379,r3:6379 fencelock secret rotate",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load()
			switch {
			case err != nil:
				return cli.UsageError{Err: err}
			case cfg.LeaseKeyFile != "":
				return cli.UsageError{Err: errors.New("FENCELOCK_LEASE_KEY_FILE takes the place of the cluster's secret: rotate the keys in that file (docs/how-to/access.md)")}
			}
			t := newClusterTool(cmd, cfg)
			err = t.rotateSecret(cmd.Context(), force)
			t.record("rotate-secret", err, slog.Bool("force", force))
			switch {
			case errors.Is(err, membership.ErrSecretInUse):
				return fmt.Errorf("%w. If a rotation failed, there is nothing left to do: its secret has spread since. Otherwise wait, or use --force, which ends such leases", err)
			case err == nil:
				_, _ = fmt.Fprintln(t.out, "the nodes have a new secret; lease ids under it and under the previous secret are accepted, and older ones are refused")
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "even if that ends leases that may be alive")
	return cmd
}

func (t clusterTool) rotateSecret(ctx context.Context, force bool) error {
	ctx, cancel := context.WithTimeout(ctx, rotateTimeout)
	defer cancel()
	return t.with(ctx, watching, func(locker *sets.Locker) error {
		if err := t.await(ctx, locker.Status, ready); err != nil {
			return err
		}
		return locker.RotateSecret(ctx, force)
	})
}
