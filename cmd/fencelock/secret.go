package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// rotateTimeout is how long a quorum may take to answer.
const rotateTimeout = 15 * time.Second

func secretCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secret",
		Short: "Replace the cluster's secret, which seals lease ids",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(secretRotateCommand())
	return cmd
}

func secretRotateCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Give the nodes a new secret, and end no lease",
		Long: `Give the nodes of FENCELOCK_REDIS_ADDRS, or of the embedded file, a new secret. Running servers use it
within seconds, and go on accepting lease ids and cursors that were sealed with the one before. (Stop a
server on the embedded file first: one process at a time may have it.)

The secret before the present one is gone afterwards. While a lease may live whose id it sealed, which is for
FENCELOCK_MAX_HOLD after the last rotation, the command refuses. --force does it all the same: holders of such
leases are answered 404, and their locks end with their TTL. So two rotations, the second by force, shut out
whoever has learned a secret.

Give it the configuration of the servers.`,
		Example: "  FENCELOCK_REDIS_ADDRS=r1:6379,r2:6379,r3:6379 fencelock secret rotate",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig()
			switch {
			case err != nil:
				return usageError{err}
			case cfg.leaseKeys != "":
				return usageError{errors.New("FENCELOCK_LEASE_KEY_FILE takes the place of the cluster's secret: rotate the keys in that file (docs/how-to/access.md)")}
			}
			return rotateSecret(cmd, cfg, force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "even if that ends leases which may live")
	return cmd
}

func rotateSecret(cmd *cobra.Command, cfg config, force bool) error {
	logger := slog.New(trouble{slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})})
	redisnode.LogLibrary(logger)
	audit := newAudit(cfg, cmd.ErrOrStderr()).With(slog.String("identity", operator()))
	ctx, cancel := context.WithTimeout(cmd.Context(), rotateTimeout)
	defer cancel()
	look := func(c *redlock.Config) { c.Recovery, c.New, c.Audit = membership.RecoveryManual, false, audit }
	err := withCluster(ctx, cfg, logger, look, func(locker *redlock.Locker) error {
		if err := awaitCluster(ctx, cmd.ErrOrStderr(), locker.Status); err != nil {
			return err
		}
		return locker.RotateSecret(ctx, force)
	})
	result := "done"
	if err != nil {
		result = "failed"
	}
	audit.Info("audit", slog.String("act", "rotate-secret"), slog.String("result", result), slog.Bool("force", force))
	switch {
	case errors.Is(err, membership.ErrSecretInUse):
		return fmt.Errorf("%w. Wait, or say --force, which ends such leases", err)
	case err == nil:
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "the nodes have a new secret; lease ids from before it are still accepted")
	}
	return err
}
