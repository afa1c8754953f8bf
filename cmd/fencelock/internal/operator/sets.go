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
	"github.com/fencelock/fencelock/lockcore/sets"
)

// The pace of a change: how long it may take in all, and how long a server that was
// stopped, whose last heartbeat lives for 3 s, still counts as running.
const (
	setsTimeout   = time.Minute
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
nothing. "sets status" prints the next command. docs/how-to/upgrade.md has the steps.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		(&setsAct{name: "plan", act: (*setsAct).plan}).command("Show which share of the resources moves, and what is next", `Show the current and the next node sets, which share of the resources moves between which sets, and
what to do next. It changes nothing.`),
		(&setsAct{name: "status", act: (*setsAct).status}).command("Show which sets are in force, how far a change has come, and what it waits for", `Show by which map the nodes of each set vote, what a change waits for, and the next command. Without
FENCELOCK_REDIS_NEXT_ADDRS it shows whether the sets of FENCELOCK_REDIS_ADDRS are in force. It changes
nothing.`),
		(&setsAct{name: "apply", act: (*setsAct).apply, changes: true}).command("Put the next node sets in force, or continue an interrupted change", `Put the next node sets in force, or continue an interrupted change. Leases that move keep their ids and
tokens. Requests for resources that move wait while their locks are copied, for as long as reading all
locks takes; all others continue. Every set needs a quorum, and every running server needs both maps.`),
		(&setsAct{name: "revert", act: (*setsAct).revert, changes: true}).command("Take back a change", `Take back a change that was interrupted, that a lost set blocks, or that is complete. A decided change is
completed first; then the opposite change follows.`),
	)
	return cmd
}

// setsAct is one of the commands below "sets".
type setsAct struct {
	name    string
	act     func(*setsAct, context.Context, *sets.Locker) error
	changes bool
	output  string // of what changes nothing
	from    int64
	force   bool

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
	if a.changes {
		cmd.Flags().Int64Var(&a.from, "from", 0, "the generation of the maps that the change starts from, as \"sets status\" prints it; at any other it changes nothing")
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
	a.tool, a.out = newClusterTool(cmd, cfg), cmd.OutOrStdout()
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

// with calls act with a Locker that has looked at all nodes.
func (a *setsAct) with(ctx context.Context, tool clusterTool, act func(*sets.Locker) error) error {
	return tool.with(ctx, watching, func(l *sets.Locker) error {
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
	if countMaps(l)["next"] == 0 { // else it is decided, and the servers that do not know it are better off afterwards
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
	err := l.RevertNext(ctx, a.from)
	if errors.Is(err, sets.ErrDecided) {
		err = a.goBack(ctx, l)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, "the node sets of FENCELOCK_REDIS_ADDRS are in force: restart the servers without FENCELOCK_REDIS_NEXT_ADDRS")
	return err
}

// goBack completes a change that is decided, and makes the opposite one.
func (a *setsAct) goBack(ctx context.Context, l *sets.Locker) error {
	if now := l.Generation(); now != a.from { // CheckFrom allows any once all sets have the next map
		return fmt.Errorf("%w: the maps are at generation %d", sets.ErrOtherChange, now)
	}
	_, n, err := unaware(ctx, l)
	if err := a.checkServers("the sets of FENCELOCK_REDIS_ADDRS", n, err); err != nil {
		return err
	}
	if err := l.ApplyNext(ctx, a.from); err != nil {
		return err
	}
	l.Observe(ctx)
	back := a.tool
	back.cfg.RedisSets, back.cfg.RedisNextSets = back.cfg.RedisNextSets, back.cfg.RedisSets
	return a.with(ctx, back, func(opposite *sets.Locker) error { return opposite.ApplyNext(ctx, l.Generation()) })
}

// unaware counts the running servers that do not know the change, or that do not know the
// present sets either. It looks again for as long as one that was stopped may be counted.
func unaware(ctx context.Context, l *sets.Locker) (ofChange, ofPresent int, err error) {
	for settled := time.Now().Add(serversSettle); ; {
		ofChange, ofPresent, err = l.Unaware(ctx)
		if err != nil || ofChange == 0 || time.Now().After(settled) {
			return ofChange, ofPresent, err
		}
		select {
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-time.After(clusterPause):
		}
	}
}

// checkServers refuses a change of which running servers do not know what; with --force it
// only says so.
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

// roleOf is what a change does to a set.
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

// setState and setMove are the sets and the moves between them as JSON. Sets are numbered from 1.
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

// printState prints what plan and status show as JSON.
func (a *setsAct) printState(ctx context.Context, l *sets.Locker) error {
	state := struct {
		Generation int64      `json:"generation"`
		Next       string     `json:"next"`
		Sets       []setState `json:"sets"`
		Moves      []setMove  `json:"moves"`
	}{Generation: l.Generation(), Next: a.next(ctx, l), Moves: []setMove{}}
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

// showNext says what is next: which command, or what the change waits for.
func (a *setsAct) showNext(ctx context.Context, l *sets.Locker) error {
	_, err := fmt.Fprintf(a.out, "generation of the maps: %d\nnext: %s\n", l.Generation(), a.next(ctx, l))
	return err
}

func (a *setsAct) next(ctx context.Context, l *sets.Locker) string {
	switch waits := a.waits(l); {
	case waits != "":
		return waits
	case a.tool.cfg.RedisNextSets == nil:
		return "nothing: the sets of FENCELOCK_REDIS_ADDRS are in force"
	}
	return nextStep(ctx, l)
}

// waits is what must be done before any command; "" if nothing.
func (a *setsAct) waits(l *sets.Locker) string {
	var waits []string
	for i, s := range l.Sets() {
		switch {
		case s.Map == "unknown" && a.tool.cfg.RedisNextSets == nil:
			waits = append(waits, fmt.Sprintf("set %d votes by the map of other node sets than those of FENCELOCK_REDIS_ADDRS: use the list that is in force, or both lists of the change that is under way", i+1))
		case s.Map == "unknown":
			waits = append(waits, fmt.Sprintf("set %d has the map of another change: use that change's configuration", i+1))
		case !s.Status.Ready:
			waits = append(waits, fmt.Sprintf("set %d has no quorum: %s", i+1, s.Status.Reason))
		}
	}
	if waits == nil {
		return ""
	}
	return "wait: " + strings.Join(waits, "; ")
}

func countMaps(l *sets.Locker) map[string]int {
	maps := make(map[string]int)
	for _, s := range l.Sets() {
		if s.Present && s.Map == "closed" {
			maps["lost"]++
		}
		maps[s.Map]++
	}
	return maps
}

func nextStep(ctx context.Context, l *sets.Locker) string {
	command := func(name string) string {
		if l.Generation() == 0 {
			return "'fencelock sets " + name + "'"
		}
		return fmt.Sprintf("'fencelock sets %s --from %d'", name, l.Generation())
	}
	apply, revert := command("apply"), command("revert")
	switch maps := countMaps(l); {
	case maps["next"] == len(l.Sets()):
		return "the change is complete: restart the servers with the next sets in FENCELOCK_REDIS_ADDRS, and without FENCELOCK_REDIS_NEXT_ADDRS; or go back with " + revert
	case maps["next"] > 0:
		return "the change is decided: " + apply + " completes it, " + revert + " completes it and goes back"
	case maps["moving"]+maps["lost"] > 0:
		return "the change has begun: " + apply + " continues it, " + revert + " takes it back"
	}
	switch n, _, err := unaware(ctx, l); {
	case err != nil:
		return "look again: " + err.Error()
	case n > 0:
		return fmt.Sprintf("restart the servers with both maps (%d run without), then: %s", n, apply)
	}
	return "when every server has both maps: " + apply
}
