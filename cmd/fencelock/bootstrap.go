package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// The pace of bootstrap.
const (
	bootstrapLook   = 2 * time.Second        // to tell which nodes answer, before --force is asked about
	bootstrapPoll   = 100 * time.Millisecond // between two looks at the status
	bootstrapSettle = time.Second            // for the status to stay as it is
	bootstrapRemind = 15 * time.Second       // between two lines that say how long yet
)

// bootstrap is what the operator asked for.
type bootstrap struct {
	isNew, force, yes bool
	timeout           time.Duration // 0 for one that fits the configuration
}

func bootstrapCommand() *cobra.Command {
	var f bootstrap
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Found a cluster of Redis nodes: for the first time, or again after most of them lost their data",
		Long: `Found the cluster of FENCELOCK_REDIS_ADDRS: for the first time, or again after a majority of its
nodes lost their data (a restart without persistence is enough). With FENCELOCK_RECOVERY=auto servers
do this by themselves; with manual they grant nothing until it was done here. Servers may run meanwhile.

It waits until every lease from before must have ended (the longest TTL in use), which nothing
but --new on empty nodes shortens, says on stderr how long yet, and exits with 0 once a quorum
may vote. Give it the configuration of the servers, the one of the guard included.

--force also gives up the nodes that do not answer. It is for machines that will never come back:
a node that does come back may repeat tokens.`,
		Example: "  FENCELOCK_REDIS_ADDRS=r1:6379,r2:6379,r3:6379 fencelock bootstrap\n  fencelock bootstrap --new",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig()
			switch {
			case err != nil:
				return usageError{err}
			case len(cfg.redisSets) == 0:
				return usageError{errors.New("FENCELOCK_REDIS_ADDRS is not set: there is no cluster to found, and the embedded file needs none")}
			case f.isNew && f.force:
				return usageError{errors.New("--new is for nodes that are all there, --force for nodes that are gone: say one of them")}
			}
			return f.run(cmd, cfg)
		},
	}
	cmd.Flags().BoolVar(&f.isNew, "new", false, "the cluster is new: do not wait, if every node is reachable and empty")
	cmd.Flags().BoolVar(&f.force, "force", false, "the nodes that do not answer will never come back: do without them")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "with --force: do not ask")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "give up after this long (default twice FENCELOCK_MAX_TTL and a minute)")
	return cmd
}

func (f bootstrap) run(cmd *cobra.Command, cfg config) error {
	logger := slog.New(trouble{slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})})
	redisnode.LogLibrary(logger)
	audit := newAudit(cfg, cmd.ErrOrStderr()).With(slog.String("identity", operator()))
	err := f.found(cmd, cfg, logger, audit)
	result := "done"
	if err != nil {
		result = "failed"
	}
	audit.Info("audit", slog.String("act", "bootstrap"), slog.String("result", result), slog.Bool("new", f.isNew), slog.Bool("force", f.force))
	return err
}

// operator is who runs the program, by the name that the system has for him.
func operator() string {
	if who, err := user.Current(); err == nil {
		return who.Username
	}
	return strconv.Itoa(os.Getuid())
}

func (f bootstrap) found(cmd *cobra.Command, cfg config, logger, audit *slog.Logger) error {
	timeout := f.timeout
	if timeout <= 0 {
		timeout = 2*cfg.maxTTL + time.Minute
	}
	if f.force {
		if err := f.confirm(cmd, cfg, logger, audit); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	found := func(c *redlock.Config) {
		c.Recovery, c.New, c.Force, c.Audit = membership.RecoveryAuto, f.isNew, f.force, audit
	}
	err := withCluster(ctx, cfg, logger, found, func(locker *redlock.Locker) error {
		return awaitCluster(ctx, cmd.ErrOrStderr(), locker.Status)
	})
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("given up after %s (--timeout): %w", timeout, err)
	}
	return err
}

// trouble is a log of what goes wrong, without the nodes' states, which the
// progress tells.
type trouble struct{ slog.Handler }

func (h trouble) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "node state" {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// confirm says what --force does to this cluster, and asks.
func (f bootstrap) confirm(cmd *cobra.Command, cfg config, logger, audit *slog.Logger) error {
	var seen lockcore.ClusterStatus
	ctx, cancel := context.WithTimeout(cmd.Context(), bootstrapLook)
	defer cancel()
	look := func(c *redlock.Config) { c.Recovery, c.New, c.Audit = membership.RecoveryManual, false, audit }
	err := withCluster(ctx, cfg, logger, look, func(locker *redlock.Locker) error {
		<-ctx.Done()
		seen = locker.Status()
		return cmd.Context().Err()
	})
	if err != nil {
		return err
	}
	gone := unreachable(seen)
	if len(gone) == 0 {
		return nil // nobody to give up
	}
	out := cmd.ErrOrStderr()
	_, _ = fmt.Fprintf(out, "These nodes do not answer and are given up for good:\n  %s\n"+
		"If one of them comes back with its data, tokens that it granted may be granted again, and what guards\n"+
		"your data cannot tell the two. Make sure that it never does: end the machine, or wipe its disk.\n", strings.Join(gone, "\n  "))
	if f.yes {
		return nil
	}
	const word = "give up"
	if !isTerminal(cmd.InOrStdin()) {
		return usageError{errors.New("nobody is there to ask: say --yes as well")}
	}
	_, _ = fmt.Fprintf(out, "Type %q to go on: ", word)
	answer, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n') // no answer is no
	if strings.TrimSpace(answer) != word {
		return errors.New("nothing was done")
	}
	return nil
}

func unreachable(s lockcore.ClusterStatus) (nodes []string) {
	for _, n := range s.Nodes {
		if n.State == lockcore.NodeUnreachable {
			nodes = append(nodes, n.Name+": "+n.Reason)
		}
	}
	return nodes
}

// withCluster runs a Locker over the nodes for as long as watch takes. Guarded
// records in a file that a running server has are left out.
func withCluster(ctx context.Context, cfg config, logger *slog.Logger, change func(*redlock.Config), watch func(*redlock.Locker) error) (err error) {
	b := newBackend(prometheus.NewRegistry()) // whose metrics nobody reads
	defer func() { err = errors.Join(err, b.close()) }()
	file, err := b.openFile(cfg)
	switch {
	case err != nil && len(cfg.redisSets) == 0:
		return err
	case err != nil: // a running server has it
		b.note("the guard's highest mark is not read: " + err.Error()) // tokens start above the clock, which is as good unless it was set back
		cfg.data = ""
	}
	if err := b.openGuard(ctx, cfg, file); err != nil {
		return err
	}
	nodes, err := b.openNodes(ctx, cfg, file, logger)
	if err != nil {
		return err
	}
	for _, note := range b.notes {
		logger.Warn("note", slog.String("note", note))
	}
	c := b.lockerConfig(cfg, logger)
	change(&c)
	if b.locker, err = redlock.New(c, nodes...); err != nil {
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = b.locker.Run(running) // the context's error
	}()
	defer func() { stop(); <-ended }()
	return watch(b.locker)
}

// awaitCluster waits until a quorum may vote and no node that answers is on its
// way any more, or until ctx ends, which then is no failure if a quorum may vote.
func awaitCluster(ctx context.Context, out io.Writer, status func() lockcore.ClusterStatus) error {
	p := progress{out: out, said: make(map[string]lockcore.NodeState), remind: time.Now().Add(bootstrapRemind)}
	tick := time.NewTicker(bootstrapPoll)
	defer tick.Stop()
	since := time.Now() // for how long it has been as it should
	for {
		now, s := time.Now(), status()
		p.show(s, now)
		if !complete(s) {
			since = now
		}
		if now.Sub(since) >= bootstrapSettle {
			return p.end(s)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return p.end(s)
		}
	}
}

func complete(s lockcore.ClusterStatus) bool {
	for _, n := range s.Nodes {
		if n.State == lockcore.NodeQuarantined {
			return false
		}
	}
	return s.Ready
}

// progress says what changes, and now and then how long yet.
type progress struct {
	out    io.Writer
	said   map[string]lockcore.NodeState
	why    string
	remind time.Time
}

func (p *progress) sayf(format string, values ...any) {
	_, _ = fmt.Fprintf(p.out, format+"\n", values...) // nobody to tell if stderr is gone
}

func (p *progress) show(s lockcore.ClusterStatus, now time.Time) {
	again := now.After(p.remind)
	if again {
		p.remind = now.Add(bootstrapRemind)
	}
	for _, n := range s.Nodes {
		known, said := p.said[n.Name]
		switch {
		case said && known == n.State && (!again || n.State == lockcore.NodeVoting):
			continue
		case !said && n.State == lockcore.NodeUnreachable && n.Since < bootstrapLook && !again:
			continue // perhaps it was not looked at yet
		}
		p.said[n.Name] = n.State
		p.sayf("%s  %s", n.Name, describe(n))
	}
	if s.Reason != p.why && len(p.said) == len(s.Nodes) {
		p.why = s.Reason
		if s.Reason != "" {
			p.sayf("%s", s.Reason)
		}
	}
}

func describe(n lockcore.NodeStatus) string {
	text := string(n.State)
	if n.Reason != "" {
		text += ": " + n.Reason
	}
	if n.Wait > 0 {
		text += "; another " + n.Wait.Round(100*time.Millisecond).String()
	}
	return text
}

func (p *progress) end(s lockcore.ClusterStatus) error {
	if !s.Ready {
		p.remind = time.Time{}
		p.show(s, time.Now())
		return errors.New("the cluster grants nothing: " + s.Reason)
	}
	p.sayf("ready: %d of %d nodes vote, %d are a quorum", s.Voting, len(s.Nodes), s.Quorum)
	return nil
}
