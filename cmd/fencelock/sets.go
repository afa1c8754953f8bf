package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// setsTimeout is how long the sets may take to get a quorum, and the change itself.
const setsTimeout = time.Minute

func setsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sets",
		Short: "Add and remove node sets while leases are held",
		Long: `Add and remove node sets while leases are held. FENCELOCK_REDIS_ADDRS has the present sets, and
FENCELOCK_REDIS_NEXT_ADDRS those that take their place: all that are to be there in the end, of which a
set that stays has the same nodes. Restart every server with both first, and with the next ones alone in
FENCELOCK_REDIS_ADDRS when the change is complete. A server without the next sets grants nothing from
"sets apply" on. docs/how-to/operate.md has the steps.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		setsDo("plan", "Show which share of the resources moves, and what is next", `Show the present and the next node sets, which share of the resources moves from which set to which,
and what to do next. It changes nothing.`, func(_ context.Context, out io.Writer, l *redlock.Locker) error {
			showSets(out, l)
			showMoves(out, l)
			return showNext(out, l)
		}),
		setsDo("status", "Show how far the change is, and what it waits for", `Show by which map the nodes of each set vote, and what the change waits for. It changes nothing.`,
			func(_ context.Context, out io.Writer, l *redlock.Locker) error {
				showSets(out, l)
				return showNext(out, l)
			}),
		setsDo("apply", "Make the next node sets the present ones, or continue that", `Make the next node sets the present ones, or continue what was interrupted. Leases that move keep their
ids and tokens. Requests for resources that move wait while what is locked is copied, for as long as
reading all locks takes; all others are served. Every set needs a quorum.`,
			func(ctx context.Context, out io.Writer, l *redlock.Locker) error {
				began := time.Now()
				if err := l.ApplyNext(ctx); err != nil {
					return err
				}
				_, _ = fmt.Fprintf(out, "the next node sets are in force (it took %s)\n", time.Since(began).Round(time.Millisecond))
				return showNext(out, l)
			}),
		setsDo("revert", "Take back a change that is not decided", `Take back a change that was interrupted before it was decided, or that a lost set stops. A change that
is decided can only be completed, with "sets apply"; make the opposite change then.`,
			func(ctx context.Context, out io.Writer, l *redlock.Locker) error {
				if err := l.RevertNext(ctx); err != nil {
					return err
				}
				_, _ = fmt.Fprintln(out, "the present node sets stay")
				return nil
			}),
	)
	return cmd
}

func setsDo(use, short, long string, act func(context.Context, io.Writer, *redlock.Locker) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long, Args: noArgs,
		Example: "  FENCELOCK_REDIS_ADDRS='a:6379;b:6379' FENCELOCK_REDIS_NEXT_ADDRS='a:6379;b:6379;c:6379' fencelock sets " + use,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load()
			switch {
			case err != nil:
				return usageError{err}
			case cfg.RedisNextSets == nil:
				return usageError{errors.New("FENCELOCK_REDIS_NEXT_ADDRS is not set: it names the node sets that are to be there in the end")}
			}
			t := newClusterTool(cmd, cfg)
			ctx, cancel := context.WithTimeout(cmd.Context(), setsTimeout)
			defer cancel()
			err = t.with(ctx, watching, func(locker *redlock.Locker) error {
				looking, stop := context.WithTimeout(ctx, clusterLook)
				defer stop()
				locker.Observe(looking)
				return act(ctx, cmd.OutOrStdout(), locker)
			})
			if use == "apply" || use == "revert" {
				t.record("sets-"+use, err)
			}
			return err
		},
	}
}

func showSets(out io.Writer, l *redlock.Locker) {
	for i, s := range l.Sets() {
		role := "stays"
		switch {
		case !s.Present:
			role = "is added"
		case !s.Next:
			role = "is removed"
		}
		state := "ready"
		if !s.Status.Ready {
			state = "no quorum: " + s.Status.Reason
		}
		_, _ = fmt.Fprintf(out, "set %d %s, map %s, %s (%s)\n", i+1, role, s.Map, state, strings.Join(s.Nodes, ", "))
	}
}

func showMoves(out io.Writer, l *redlock.Locker) {
	all := 0.0
	for _, m := range l.Moves() {
		all += m.Share
		_, _ = fmt.Fprintf(out, "%.1f %% of the resources move from set %d to set %d\n", 100*m.Share, m.From+1, m.To+1)
	}
	_, _ = fmt.Fprintf(out, "%.1f %% move in all\n", 100*all)
}

// showNext says what the change waits for.
func showNext(out io.Writer, l *redlock.Locker) error {
	waits, maps := []string{}, make(map[string]int)
	for i, s := range l.Sets() {
		maps[s.Map]++
		if !s.Status.Ready {
			waits = append(waits, fmt.Sprintf("set %d has no quorum: %s", i+1, s.Status.Reason))
		}
		if s.Map == "unknown" {
			waits = append(waits, fmt.Sprintf("set %d has the map of another change: use the configuration of that one", i+1))
		}
	}
	var next string
	switch all := len(l.Sets()); {
	case len(waits) > 0:
		next = "wait: " + strings.Join(waits, "; ")
	case maps["next"] == all:
		next = "the change is complete: restart the servers with the next sets in FENCELOCK_REDIS_ADDRS, and without FENCELOCK_REDIS_NEXT_ADDRS"
	case maps["next"] > 0:
		next = "the change is decided: 'fencelock sets apply' completes it"
	case maps["moving"] > 0:
		next = "the change has begun: 'fencelock sets apply' continues it, 'fencelock sets revert' takes it back"
	default:
		next = "when every server has both maps: 'fencelock sets apply'"
	}
	_, err := fmt.Fprintln(out, "next: "+next)
	return err
}
