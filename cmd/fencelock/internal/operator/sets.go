package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// How long a change may take, and how long a stopped server still counts as running: its last heartbeat
// lives for 3 s.
const (
	setsTimeout   = 10 * time.Minute // a million locks take half a minute, on a busy machine several
	serversSettle = 4 * time.Second
)

func setsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sets",
		Short: "Add and remove node sets while leases are held",
		Long: `Add and remove node sets while leases are held. FENCELOCK_REDIS_ADDRS has the current sets, and
FENCELOCK_REDIS_NEXT_ADDRS all the sets that should exist in the end; a set that stays keeps its nodes.
First restart every server with both variables. When the change is complete, restart every server with
only the new sets, in FENCELOCK_REDIS_ADDRS. From "sets apply" on, a server without the next sets grants
nothing. "sets status" prints the next command. docs/how-to/change-nodes.md has the steps.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		(&setsAct{name: "plan", act: (*setsAct).plan}).command("Show which share of the resources moves, and what is next", `Show the current and the next node sets, which share of the resources moves between which sets, how
many locks are copied and how long that takes, and what to do next. It changes nothing.`),
		(&setsAct{name: "status", act: (*setsAct).status}).command("Show which sets are in force, how far a change has come, and what it waits for", `Show by which map the nodes of each set vote, what a change waits for, and the next command. Without
FENCELOCK_REDIS_NEXT_ADDRS it shows whether the sets of FENCELOCK_REDIS_ADDRS are in force. It changes
nothing.`),
		(&setsAct{name: "apply", act: (*setsAct).apply, changes: true}).command("Put the next node sets in force, or continue an interrupted change", `Put the next node sets in force, or continue an interrupted change: run it again, as it was, whenever it
was stopped. Leases that move keep their ids and tokens. Requests for resources that move wait while
their locks are copied, for as long as reading all locks takes; all others continue. Every set needs a
quorum, and every running server needs both maps.

It shows on stderr what it does. On a terminal it shows the plan first, and asks.`),
		(&setsAct{name: "revert", act: (*setsAct).revert, changes: true}).command("Take back a change", `Take back a change that was interrupted, that a lost set blocks, or that is complete. A decided change is
completed first; then the opposite change follows.`),
	)
	return cmd
}

// setsAct is one of the subcommands of "sets".
type setsAct struct {
	name    string
	act     func(*setsAct, context.Context, *sets.Locker) error
	changes bool
	output  string // the output format of subcommands that change nothing
	from    int64
	force   bool
	dryRun  bool
	yes     bool

	cmd  *cobra.Command
	tool clusterTool
	out  io.Writer
}

func (a *setsAct) command(short, long string) *cobra.Command {
	cmd := &cobra.Command{
		Use: a.name, Short: short, Long: long, Args: cli.NoArgs,
		Example: "  FENCELOCK_REDIS_ADDRS='a:6379;b:6379' FENCELOCK_REDIS_NEXT_ADDRS='a:6379;b:6379;c:6379' fencelock sets " + a.name,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.run(cmd) },
	}
	if !a.changes {
		cli.OutputFlag(cmd, &a.output)
	}
	if a.name == "apply" {
		cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "show what would happen, as \"sets plan\" does, and change nothing")
		cmd.Flags().BoolVar(&a.yes, "yes", false, "don't ask for confirmation on a terminal")
	}
	if a.changes {
		cmd.Flags().Int64Var(&a.from, "from", 0, "the generation of the maps that the change starts from, as \"sets status\" prints it; at any other no change is begun")
		cmd.Flags().BoolVar(&a.force, "force", false, "continue without the servers that don't know the maps: from then on those grant and extend nothing")
	}
	return cmd
}

func (a *setsAct) run(cmd *cobra.Command) error {
	cfg, err := config.Load()
	switch {
	case err != nil:
		return cli.UsageError{Err: err}
	case len(cfg.RedisSets) == 0:
		return cli.UsageError{Err: errors.New("FENCELOCK_REDIS_ADDRS is not set: it names the current node sets")}
	case cfg.RedisNextSets == nil && a.name != "status":
		return cli.UsageError{Err: errors.New("FENCELOCK_REDIS_NEXT_ADDRS is not set: it names the node sets that should exist after the change")}
	}
	a.cmd, a.tool, a.out = cmd, newClusterTool(cmd, cfg), cmd.OutOrStdout()
	if a.dryRun {
		a.act, a.changes = (*setsAct).plan, false
	} else if a.name == "apply" && !a.yes && cli.IsTerminal(cmd.InOrStdin()) {
		if err := a.confirm(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), setsTimeout)
	defer cancel()
	err = a.with(ctx, a.tool, func(l *sets.Locker) error { return a.act(a, ctx, l) })
	if errors.Is(err, sets.ErrOtherChange) {
		err = fmt.Errorf("%w; nothing more was changed: 'fencelock sets status' prints the command that is next", err)
	}
	if a.changes {
		a.tool.record("sets-"+a.name, err, slog.Int64("from", a.from), slog.Bool("force", a.force))
	}
	return err
}

// confirm shows the plan, and asks the user before anything is changed.
func (a *setsAct) confirm() error {
	ctx, cancel := context.WithTimeout(a.cmd.Context(), setsTimeout)
	defer cancel()
	if err := a.with(ctx, a.tool, func(l *sets.Locker) error { return a.plan(ctx, l) }); err != nil {
		return err
	}
	return cli.Confirm(a.cmd, "apply")
}

// with calls act with a Locker that has observed all nodes, and shows the Locker's progress.
func (a *setsAct) with(ctx context.Context, tool clusterTool, act func(*sets.Locker) error) error {
	change := func(c *sets.Config) {
		watching(c)
		c.Progress = func(step string) { _, _ = fmt.Fprintln(a.tool.out, step) } // the change continues even if stderr is closed
	}
	return tool.with(ctx, change, func(l *sets.Locker) error {
		looking, stop := context.WithTimeout(ctx, clusterLook)
		defer stop()
		l.Observe(looking)
		return act(l)
	})
}

func (a *setsAct) plan(ctx context.Context, l *sets.Locker) error {
	if a.output == "json" {
		return a.printState(ctx, l)
	}
	showSets(a.out, l)
	showMoves(a.out, l)
	if err := a.showLocks(ctx, l); err != nil {
		return err
	}
	return a.showNext(ctx, l)
}

func (a *setsAct) status(ctx context.Context, l *sets.Locker) error {
	if a.output == "json" {
		return a.printState(ctx, l)
	}
	showSets(a.out, l)
	return a.showNext(ctx, l)
}

func (a *setsAct) apply(ctx context.Context, l *sets.Locker) error {
	began := time.Now()
	if err := l.CheckFrom(a.from); err != nil {
		return err
	}
	if !l.Begun() { // in a change that has begun, servers that do not know it benefit from its end
		n, _, err := unaware(ctx, l)
		if err := a.checkServers("this change", n, err); err != nil {
			return err
		}
	}
	if err := l.ApplyNext(ctx, a.from); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(a.out, "the next node sets are in force (it took %s)\n", time.Since(began).Round(time.Millisecond))
	l.Observe(ctx)
	return a.showNext(ctx, l)
}

func (a *setsAct) revert(ctx context.Context, l *sets.Locker) error {
	goingBack, err := a.goingBack(ctx, l, (*sets.Locker).ApplyNext)
	if !goingBack && err == nil {
		err = l.RevertNext(ctx, a.from)
	}
	if errors.Is(err, sets.ErrDecided) {
		err = a.goBack(ctx, l)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, "the node sets of FENCELOCK_REDIS_ADDRS are in force: restart the servers without FENCELOCK_REDIS_NEXT_ADDRS")
	return err
}

// goBack completes a change that is decided already, and then makes the opposite change.
func (a *setsAct) goBack(ctx context.Context, l *sets.Locker) error {
	complete := len(a.outlook(l).with("next")) == len(l.Sets())
	if now := l.Generation(); complete && now != a.from { // CheckFrom accepts any generation after the change has begun
		return fmt.Errorf("%w: the maps are at generation %d", sets.ErrOtherChange, now)
	}
	_, n, err := unaware(ctx, l)
	if err := a.checkServers("the sets of FENCELOCK_REDIS_ADDRS", n, err); err != nil {
		return err
	}
	if !complete {
		if err := l.ApplyNext(ctx, a.from); err != nil {
			return err
		}
		l.Observe(ctx)
	}
	return a.with(ctx, a.tool.opposite(), func(opposite *sets.Locker) error { return opposite.ApplyNext(ctx, l.Generation()) })
}

// opposite swaps the present and the next sets, for the change back.
func (t clusterTool) opposite() clusterTool {
	t.cfg.RedisSets, t.cfg.RedisNextSets = t.cfg.RedisNextSets, t.cfg.RedisSets
	return t
}

// goingBack reports whether an earlier run of revert has begun the change back, and was stopped. If so,
// it continues with act, unless act is nil.
func (a *setsAct) goingBack(ctx context.Context, l *sets.Locker, act func(*sets.Locker, context.Context, int64) error) (begun bool, err error) {
	if a.outlook(l).with("unknown") == nil {
		return false, nil
	}
	err = a.with(ctx, a.tool.opposite(), func(opposite *sets.Locker) error {
		if begun = opposite.Begun(); !begun || act == nil {
			return nil
		}
		return act(opposite, ctx, opposite.Generation())
	})
	return begun, err
}

// unaware counts the running servers that do not know the change, and those that do not know the present
// sets. It repeats the count until servers that have stopped are certainly not counted any more.
func unaware(ctx context.Context, l *sets.Locker) (ofChange, ofPresent int, err error) {
	for settled := time.Now().Add(serversSettle); ; {
		ofChange, ofPresent, err = l.Unaware(ctx)
		if err != nil || ofChange == 0 || time.Now().After(settled) {
			return ofChange, ofPresent, err
		}
		if !pause.For(ctx, clusterPause) {
			return 0, 0, ctx.Err()
		}
	}
}

// checkServers refuses a change if running servers do not know about it. With --force it only prints a
// warning.
func (a *setsAct) checkServers(what string, unaware int, err error) error {
	switch {
	case err != nil, unaware == 0:
		return err
	case a.force:
		_, _ = fmt.Fprintf(a.tool.out, "%d running servers do not know %s: from now on they grant and extend nothing, and leases that only they extend are lost\n", unaware, what)
		return nil
	}
	return fmt.Errorf("%d running servers do not know %s, and would grant and extend nothing from then on, so leases that only they extend would be lost. Nothing was changed. "+
		"Restart every server with FENCELOCK_REDIS_ADDRS and FENCELOCK_REDIS_NEXT_ADDRS as they are here, or stop it; --force continues without these servers", unaware, what)
}

func showSets(out io.Writer, l *sets.Locker) {
	for i, s := range l.Sets() {
		state := "ready"
		if !s.Status.Ready {
			state = "no quorum: " + s.Status.Reason
		}
		_, _ = fmt.Fprintf(out, "set %d %s, map %s, %s (%s)\n", i+1, roleOf(l, s), s.Map, state, strings.Join(s.Nodes, ", "))
	}
}

// roleOf returns what a change does to a set.
func roleOf(l *sets.Locker, set sets.SetStatus) string {
	switch changing := slices.ContainsFunc(l.Sets(), func(s sets.SetStatus) bool { return s.Next }); {
	case !changing:
		return "is configured"
	case !set.Present:
		return "is added"
	case !set.Next:
		return "is removed"
	}
	return "stays"
}

// setState and setMove are the JSON forms of the sets and of the moves between them. Sets are numbered
// from 1.
type (
	setState struct {
		Set    int      `json:"set"`
		Role   string   `json:"role"`
		Map    string   `json:"map"`
		Ready  bool     `json:"ready"`
		Reason string   `json:"reason"`
		Nodes  []string `json:"nodes"`
	}
	setMove struct {
		From  int     `json:"from"`
		To    int     `json:"to"`
		Share float64 `json:"share"`
	}
)

// printState prints as JSON what plan and status show.
func (a *setsAct) printState(ctx context.Context, l *sets.Locker) error {
	now, next, err := a.sentences(ctx, l)
	if err != nil {
		return err
	}
	state := struct {
		Generation int64      `json:"generation"`
		Now        string     `json:"now"`
		Next       string     `json:"next"`
		Sets       []setState `json:"sets"`
		Moves      []setMove  `json:"moves"`
	}{Generation: l.Generation(), Now: now, Next: next, Moves: []setMove{}}
	for i, s := range l.Sets() {
		state.Sets = append(state.Sets, setState{
			Set: i + 1, Role: strings.TrimPrefix(roleOf(l, s), "is "), Map: s.Map, Ready: s.Status.Ready, Reason: s.Status.Reason, Nodes: s.Nodes,
		})
	}
	for _, m := range l.Moves() {
		state.Moves = append(state.Moves, setMove{From: m.From + 1, To: m.To + 1, Share: m.Share})
	}
	return cli.PrintJSON(a.out, state)
}

func showMoves(out io.Writer, l *sets.Locker) {
	all := 0.0
	for _, m := range l.Moves() {
		all += m.Share
		_, _ = fmt.Fprintf(out, "%.1f %% of the resources move from set %d to set %d\n", 100*m.Share, m.From+1, m.To+1)
	}
	_, _ = fmt.Fprintf(out, "%.1f %% move in all\n", 100*all)
}

// carriedEach is how long a change takes for each lock that it copies, as measured for
// docs/how-to/change-nodes.md. carriedSettles is how long it takes in addition.
const (
	carriedEach    = 25 * time.Microsecond
	carriedSettles = time.Second
)

// showLocks prints how many locks are copied, and how long that takes.
func (a *setsAct) showLocks(ctx context.Context, l *sets.Locker) error {
	locks, err := l.Moving(ctx)
	if err != nil {
		if !l.Status().Ready { // the next step explains why
			return nil
		}
		return err
	}
	takes := (carriedSettles + time.Duration(locks)*carriedEach).Round(100 * time.Millisecond)
	_, err = fmt.Fprintf(a.out, "%d locks are copied: requests for resources that move wait for about %s, all others continue\n", locks, takes)
	return err
}

// showNext prints the present state, and what comes next: a command, or what the change waits for.
func (a *setsAct) showNext(ctx context.Context, l *sets.Locker) error {
	now, next, err := a.sentences(ctx, l)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "generation of the maps: %d\nnow: %s\nnext: %s\n", l.Generation(), now, next)
	return err
}

func (a *setsAct) outlook(l *sets.Locker) outlook {
	return outlook{sets: l.Sets(), changing: a.tool.cfg.RedisNextSets != nil, generation: l.Generation()}
}

// sentences returns a description of the present state, and what comes next.
func (a *setsAct) sentences(ctx context.Context, l *sets.Locker) (now, next string, err error) {
	o := a.outlook(l)
	if o.changing {
		if o.goingBack, err = a.goingBack(ctx, l, nil); err != nil {
			return "", "", err
		}
	}
	now, next = o.sentences(func() (int, error) {
		n, _, err := unaware(ctx, l)
		return n, err
	})
	return now, next, nil
}
