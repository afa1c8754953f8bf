package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/backend"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/logging"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/sets"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// The times of the commands that work on a cluster.
const (
	clusterLook   = 2 * time.Second        // how long nodes may take to respond
	clusterPause  = 100 * time.Millisecond // between two looks at the status
	clusterSettle = time.Second            // how long the status must stay unchanged
	clusterRemind = 15 * time.Second       // between two messages about the remaining time
)

// clusterTool is a command that works on the configured nodes.
type clusterTool struct {
	cfg           config.Config
	out           io.Writer
	logger, audit *slog.Logger
}

func newClusterTool(cmd *cobra.Command, cfg config.Config) clusterTool {
	out := cmd.ErrOrStderr()
	logger := slog.New(withoutStates{slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn})})
	redisnode.LogLibrary(logger)
	return clusterTool{cfg: cfg, out: out, logger: logger, audit: logging.NewAudit(cfg, out).With(slog.String("identity", operator()))}
}

// operator returns the login name of the user who runs the program, or else the user's number.
func operator() string {
	if who, err := user.Current(); err == nil {
		return who.Username
	}
	return strconv.Itoa(os.Getuid())
}

// withoutStates is a log handler that drops the nodes' states, because the progress shows them.
type withoutStates struct{ slog.Handler }

func (h withoutStates) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "node state" {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// record writes the result of an act to the audit log.
func (t clusterTool) record(act string, err error, details ...slog.Attr) {
	result := "done"
	if err != nil {
		result = "failed"
	}
	t.audit.LogAttrs(context.Background(), slog.LevelInfo, "audit", append([]slog.Attr{slog.String("act", act), slog.String("result", result)}, details...)...)
}

// watching configures a Locker that changes nothing by itself.
func watching(c *sets.Config) { c.Watching, c.New = true, false }

// with runs a Locker over the nodes while act runs.
func (t clusterTool) with(ctx context.Context, change func(*sets.Config), act func(*sets.Locker) error) (err error) {
	b, err := backend.Open(ctx, t.cfg, backend.Options{Logger: t.logger, Audit: t.audit, Registry: prometheus.NewRegistry(), Tool: change})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	for _, note := range b.Notes {
		t.logger.Warn("note", slog.String("note", note))
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = b.Locker.Run(running) // the context's error
	}()
	defer func() { stop(); <-ended }()
	return act(b.Locker)
}

// await waits until done has been true for a moment, so that each node was observed, or until ctx ends.
// The end of ctx is not an error if a quorum may vote by then.
func (t clusterTool) await(ctx context.Context, status func() lockcore.ClusterStatus, done func(lockcore.ClusterStatus) bool) error {
	p := progress{out: t.out, shown: make(map[string]lockcore.NodeState), remind: time.Now().Add(clusterRemind)}
	tick := time.NewTicker(clusterPause)
	defer tick.Stop()
	var since time.Time // when done became true; on a busy machine, time may pass between any two lines
	for ctx.Err() == nil {
		s := status()
		p.show(s)
		switch {
		case !done(s):
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= clusterSettle:
			return p.end(s)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return p.end(status())
}

// ready reports whether a quorum may vote. It does not require the end of a quarantine, which is longer
// than an operator waits.
func ready(s lockcore.ClusterStatus) bool { return s.Ready }

// complete reports whether a quorum may vote and no reachable node is in quarantine.
func complete(s lockcore.ClusterStatus) bool {
	for _, n := range s.Nodes {
		if n.State == lockcore.NodeQuarantined {
			return false
		}
	}
	return s.Ready
}

// progress prints changes, and after every clusterRemind the remaining time.
type progress struct {
	out    io.Writer
	shown  map[string]lockcore.NodeState
	reason string
	remind time.Time
}

func (p *progress) show(s lockcore.ClusterStatus) {
	again := time.Now().After(p.remind)
	if again {
		p.remind = time.Now().Add(clusterRemind)
	}
	for _, n := range s.Nodes {
		known, shown := p.shown[n.Name]
		switch {
		case shown && known == n.State && (!again || n.State == lockcore.NodeVoting):
			continue
		case !shown && n.State == lockcore.NodeUnreachable && n.Since < clusterLook && !again:
			continue // it may not have been observed yet
		}
		p.shown[n.Name] = n.State
		_, _ = fmt.Fprintf(p.out, "%s  %s\n", n.Name, screen.Visible(describe(n))) // the work continues even if stderr is closed
	}
	if s.Reason != p.reason && len(p.shown) == len(s.Nodes) {
		p.reason = s.Reason
		if s.Reason != "" {
			_, _ = fmt.Fprintln(p.out, screen.Visible(s.Reason))
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
		p.show(s)
		return errors.New("the cluster grants nothing: " + s.Reason)
	}
	if s.Sets == nil {
		_, _ = fmt.Fprintf(p.out, "ready: %d of %d nodes vote, %d are a quorum\n", s.Voting, len(s.Nodes), s.Quorum)
	}
	for i, set := range s.Sets {
		_, _ = fmt.Fprintf(p.out, "ready: set %d: %d of %d nodes vote, %d are a quorum\n", i+1, set.Voting, len(set.Nodes), set.Quorum)
	}
	return nil
}
