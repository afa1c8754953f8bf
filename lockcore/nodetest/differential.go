package nodetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Differential gives a node and a Model the same random commands, admissions
// included, and wants the same replies. open makes a node that holds nothing,
// for one sequence of commands, and tells how to end it. The sequences are the same
// in every run; RAPID_SEED draws others, as make explore does. A sequence that fails
// is made as short as it gets and printed with its seed.
func Differential(t *testing.T, open func() (h Harness, done func())) {
	t.Helper()
	fixSeed(t)
	rapid.Check(t, func(rt *rapid.T) {
		h, done := open()
		defer done()
		p := newPair(rt, h)
		defer p.stop()
		commands := rapid.SliceOfN(rapid.Custom(drawCommand), 20, 120).Draw(rt, "commands")
		for _, c := range commands {
			p.run(c)
		}
		p.compareWakes()
		p.run(command{Kind: "read all"})
	})
}

// fixSeed makes rapid draw the same sequences in every run, unless -rapid.seed or
// RAPID_SEED names others: a test that passed must not fail because of the draw.
func fixSeed(t *testing.T) {
	t.Helper()
	if flag.Lookup("rapid.seed").Value.String() != "0" {
		return
	}
	if err := flag.Set("rapid.seed", "1"); err != nil {
		t.Fatal(err)
	}
}

// command is one step. Its numbers are choices among few: what they mean
// follows from the model's state when it is run.
type command struct {
	Kind     string
	Resource int
	Owner    int
	Ticket   int
	Attempt  int
	TTL      int
	Token    int // added to the lock's grant, or the counter
	View     int // added to the node's epoch
	Other    int
}

// commandKinds has each as often as it is to be drawn.
func commandKinds() []string {
	//nolint:dupword // on purpose
	return strings.Fields(`
		acquire acquire acquire acquire acquire acquire acquire acquire acquire acquire acquire acquire
		confirm confirm confirm confirm confirm extend extend extend extend extend extend extend
		release release release release release release release-after release-after release-after retract retract retract retract retract read read
		turn turn turn turn turn turn turn turn enqueue enqueue enqueue dequeue dequeue dequeue heartbeat heartbeat
		expire expire expire expire fence raise survey counters scan observe
		found stage load admit staged staged quarantine join restart wipe`)
}

// GoString is how a sequence that failed is printed.
func (c command) GoString() string { return brief(c) }

func drawCommand(t *rapid.T) command {
	pick := func(name string, of ...int) int { return rapid.SampledFrom(of).Draw(t, name) }
	return command{
		Kind:     rapid.SampledFrom(commandKinds()).Draw(t, "kind"),
		Resource: pick("resource", 0, 0, 0, 1, 2),
		Owner:    pick("owner", 0, 0, 1, 2),
		Ticket:   pick("ticket", 0, 1, 2, 3, 4, 5, 6, 7),
		Attempt:  pick("attempt", 0, 0, 1, 2),
		TTL:      pick("ttl", 0, 0, 0, 0, 1, 2),
		Token:    pick("token", 0, 0, 0, -1, 1, 7),
		View:     pick("epoch", 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, 1, 2),
		Other:    pick("other", 0, 0, 0, 0, 1, 2),
	}
}

// pair is a node and the model that it is held against.
type pair struct {
	*rapid.T
	ctx     context.Context
	cancel  context.CancelFunc
	cleanup []func()
	began   time.Time

	model   *Model
	node    node.Node
	restart func()
	wipe    func()

	joined            node.Cluster      // whose operations they are asked
	staged            [2]node.Admission // the last one that was tried, for the model and for the node
	modelTurns, turns map[string]*recorder
	deaf              bool // a restart broke the subscriptions
}

func newPair(t *rapid.T, h Harness) *pair {
	p := &pair{
		T: t, began: time.Now(), model: NewModel(ModelOptions{}), node: h.Node, restart: h.Restart, wipe: h.Wipe,
		modelTurns: make(map[string]*recorder), turns: make(map[string]*recorder),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.join(0)
	for _, server := range []string{"s0", "s1"} {
		p.modelTurns[server] = listen(p, p.model, server)
		p.turns[server] = listen(p, p.node, server)
	}
	return p
}

// Context and Cleanup are for listen: rapid's own end with the whole check.
func (p *pair) Context() context.Context { return p.ctx }

// Cleanup is called in stop.
func (p *pair) Cleanup(f func()) { p.cleanup = append(p.cleanup, f) }

func (p *pair) stop() {
	p.cancel()
	for _, f := range p.cleanup {
		f()
	}
}

// differf fails, unless so much time has passed that something may have ended
// on one of the two only: a server in the queue, which lives for node.EnqueuedTTL.
func (p *pair) differf(format string, args ...any) {
	p.Helper()
	if time.Since(p.began) > node.EnqueuedTTL/2 {
		p.Skip("too slow a machine: what ends by itself may have ended")
	}
	p.Fatalf(format+"\nmodel: %s", append(args, p.model)...)
}

func (p *pair) same(what string, node, model any) {
	p.Helper()
	n, m := fmt.Sprintf("%+v", node), fmt.Sprintf("%+v", model)
	p.Logf("%s: %s", what, m)
	if n != m {
		p.differf("%s:\n node %s\nmodel %s", what, n, m)
	}
}

func (p *pair) cluster(other int) node.Cluster {
	return node.Cluster{Nodes: 3, Hash: []string{"c0ffee", "beef", "beef"}[other]}
}

func (p *pair) join(other int) {
	p.joined = p.cluster(other)
	p.model.Join(p.joined)
	p.node.Join(p.cluster(other))
}

// vote gives both the same operation.
func (p *pair) vote(op node.Op) (reply node.Reply) {
	p.Helper()
	want := p.model.Apply(op)
	got, err := Submit(p.node, op)
	if err != nil {
		p.Fatal(err)
	}
	p.Logf("%s: %s", brief(op), brief(want))
	near := got
	if off := got.Remaining - want.Remaining; off.Abs() < slack && (got.Remaining == 0) == (want.Remaining == 0) {
		near.Remaining = want.Remaining // their clocks were not asked at the same time
	}
	if diff := Diff(op.Kind, near, want); diff != "" {
		p.differf("%s:\n node %s\nmodel %s\n%s", brief(op), brief(got), brief(want), diff)
	}
	return want
}

// brief prints the fields of a structure that say something.
func brief(of any) string {
	v := reflect.ValueOf(of)
	if v.Kind() != reflect.Struct {
		return fmt.Sprintf("%+v", of)
	}
	var fields []string
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			fields = append(fields, fmt.Sprintf("%s:%s", v.Type().Field(i).Name, brief(v.Field(i).Interface())))
		}
	}
	return "{" + strings.Join(fields, " ") + "}"
}

func (c command) resource() string { return []string{"a", "b *", "ü"}[c.Resource] }
func (c command) owner() string    { return []string{"L0", "L1", "L2"}[c.Owner] }

func (c command) ttl() time.Duration {
	return []time.Duration{longTTL, maxTTL, maxTTL + time.Second}[c.TTL]
}

// ticket gives two that arrived at the same time, one that arrives again later,
// and one of a server that nobody listens for.
func (c command) ticket() node.Ticket {
	return []node.Ticket{
		{ID: "t0", Server: "s0", Arrival: 50, Holder: "a holder"}, {ID: "t1", Server: "s1", Arrival: 50},
		{ID: "t2", Server: "s0", Arrival: 40}, {ID: "t2", Server: "s0", Arrival: 90}, {ID: "t3", Server: "s2", Arrival: 45},
		{ID: "k1", Server: "s0", Arrival: 60, Keyed: true}, {ID: "k1", Server: "s1", Arrival: 70, Keyed: true}, {ID: "k1", Server: "s1", Arrival: 70},
	}[c.Ticket]
}

// op builds an operation around the model's state.
func (p *pair) op(kind node.OpKind, c command) node.Op {
	op := node.Op{
		Kind: kind, Epoch: p.model.observed().Epoch + node.Epoch(c.View), Resource: c.resource(), Owner: c.owner(), TTL: c.ttl(),
		Token: max(1, p.model.lastGrant(c.resource())+fencing.Token(c.Token)), Meta: fmt.Sprintf("meta %d", c.Other),
	}
	if c.Attempt > 0 {
		op.Attempt, op.Scope = fmt.Sprintf("attempt%d", c.Attempt), fmt.Sprintf("scope %d", c.Other)
	}
	return op
}

func (m *Model) observed() node.Observation {
	seen, _ := m.Observe(context.Background())
	return seen
}

// lastGrant is of the lock if there is one, else what the counter says.
func (m *Model) lastGrant(resource string) fencing.Token {
	if r := m.Apply(read(resource)); r.Outcome == node.Granted {
		return r.Grant
	}
	counters, err := m.Counters(context.Background(), m.observed().Epoch, []string{resource})
	if err != nil {
		return 1
	}
	return counters[0]
}

// run runs one command on both.
func (p *pair) run(c command) {
	p.Helper()
	kinds := map[string]node.OpKind{
		"acquire": node.OpAcquire, "turn": node.OpAcquire, "confirm": node.OpConfirm, "extend": node.OpExtend,
		"release": node.OpRelease, "release-after": node.OpReleaseAfter, "retract": node.OpRetract, "read": node.OpRead,
		"enqueue": node.OpEnqueue, "dequeue": node.OpDequeue, "heartbeat": node.OpHeartbeat,
	}
	if kind, isVote := kinds[c.Kind]; isVote {
		if c.Other == 0 && !p.model.votes() {
			p.heal()
		}
		p.runVote(p.op(kind, c), c)
		return
	}
	switch c.Kind {
	case "expire":
		p.expire(c)
	case "join":
		p.join(c.Other)
	case "restart":
		p.runRestart()
	case "wipe":
		if p.wipe != nil {
			p.model.Wipe()
			p.wipe()
		}
	default:
		p.runMember(c)
	}
}

func (p *pair) runVote(op node.Op, c command) {
	switch {
	case c.Kind == "turn", c.Kind == "enqueue", c.Kind == "dequeue", c.Kind == "heartbeat":
		op.Ticket = c.ticket()
	case c.Kind == "retract" && c.Other > 0:
		op.Above = op.Token
	}
	p.vote(op)
}

// votes reports whether the gate is open.
func (m *Model) votes() bool { return m.Apply(read("any")).Outcome != node.NotAdmitted }

// heal admits the nodes to the cluster that they belong to.
func (p *pair) heal() {
	p.join(0)
	if seen := p.model.observed(); seen.Cluster == p.cluster(1) {
		p.join(1)
	}
	p.run(command{Kind: "found"})
}

// expire lets a lock end by itself on both: what is locked is released, and
// taken again for almost no time. (An extend cannot do it: it never shortens.)
func (p *pair) expire(c command) {
	if now := p.vote(node.Op{Kind: node.OpRead, Resource: c.resource()}); now.Outcome == node.Granted {
		p.vote(release(c.resource(), now.Owner, now.Grant))
	}
	op := p.op(node.OpAcquire, c)
	op.TTL = time.Millisecond
	if p.vote(op).Outcome != node.Granted {
		return
	}
	for _, n := range []node.Node{p.model, p.node} {
		deadline := time.Now().Add(patience)
		for {
			r, err := Submit(n, node.Op{Kind: node.OpRead, Resource: c.resource()})
			if err != nil || time.Now().After(deadline) {
				p.Fatalf("%s: %+v, %v", n.Name(), r, err)
			}
			if r.Outcome == node.NotHeld {
				break
			}
		}
	}
}

func (p *pair) runRestart() {
	if p.restart != nil {
		p.deaf = true
		p.model.Restart(true)
		p.restart()
	}
}

// runMember runs a command of Reader or Admittee on both.
func (p *pair) runMember(c command) {
	p.Helper()
	seen := p.model.observed()
	epoch := seen.Epoch + node.Epoch(c.View)
	switch c.Kind {
	case "found":
		a := p.admission(c)
		for i := range a {
			a[i].Bootstrapped, a[i].Cluster, a[i].OnlyIfEmpty = a[i].Epoch, p.joined, false
		}
		p.staged = a
		p.admit("stage", node.Node.Stage)
		p.admit("admit", node.Node.Admit)
	case "stage":
		p.staged = p.admission(c)
		p.admit("stage", node.Node.Stage)
	case "load":
		p.load(c)
	case "staged": // to its end
		p.staged = p.admission(command{Kind: c.Kind, Token: c.Token, View: 1})
		p.admit("stage", node.Node.Stage)
		p.runRead(command{Kind: "observe"}, epoch)
		p.load(c)
		p.admit("admit", node.Node.Admit)
	case "admit":
		p.admit("admit", node.Node.Admit)
	case "quarantine":
		note := fmt.Sprintf("note %d", c.Owner)
		p.same("quarantine", fault(p.node.Quarantine(p.ctx, note)), fault(p.model.Quarantine(p.ctx, note)))
	case "raise":
		p.same("raise", fault(p.node.RaiseMaxTTL(p.ctx, c.ttl())), fault(p.model.RaiseMaxTTL(p.ctx, c.ttl())))
	case "fence":
		got, err := p.node.InstallEpoch(p.ctx, epoch)
		want, wantErr := p.model.InstallEpoch(p.ctx, epoch)
		p.same("fence", []any{got, fault(err)}, []any{want, fault(wantErr)})
	default:
		p.runRead(c, epoch)
	}
}

func (p *pair) runRead(c command, epoch node.Epoch) {
	p.Helper()
	resources := []string{"a", "b *", "ü", "never used"}
	if all := c.Kind == "read all"; all || c.Kind == "observe" {
		p.same("observe", p.observe(p.node), p.observe(p.model))
	}
	if all := c.Kind == "read all"; all || c.Kind == "survey" {
		p.same("survey", p.survey(p.node, epoch), p.survey(p.model, epoch))
	}
	if all := c.Kind == "read all"; all || c.Kind == "counters" {
		got, err := p.node.Counters(p.ctx, epoch, resources)
		want, wantErr := p.model.Counters(p.ctx, epoch, resources)
		p.same("counters", []any{got, fault(err)}, []any{want, fault(wantErr)})
	}
	if all := c.Kind == "read all"; all || c.Kind == "scan" {
		prefix := []string{"", "b *", "*"}[c.Other]
		p.same("scan", p.scan(p.node, prefix), p.scan(p.model, prefix))
	}
	if c.Kind == "read all" {
		for _, resource := range resources {
			p.vote(node.Op{Kind: node.OpRead, Resource: resource})
		}
	}
}

// admission makes one for the model and one for the node: they differ in the
// incarnation that they name.
func (p *pair) admission(c command) [2]node.Admission {
	seen := p.model.observed()
	a := node.Admission{
		Epoch: max(1, max(seen.Epoch, seen.Staged)+1+node.Epoch(c.Owner)-node.Epoch(c.Ticket/4)), Bootstrapped: seen.Epoch + node.Epoch(c.View), Cluster: p.cluster(c.Other),
		Floor: max(100, seen.Marks.HighWater+fencing.Token(c.Token)), MaxTTL: maxTTL, OnlyIfEmpty: c.Attempt == 2, Note: seen.Note,
	}
	switch {
	case c.Attempt == 1: // as if it were in no quarantine yet
		a.Note = ""
	case seen.Admitted:
		a.Note = node.MissedNote(seen.Epoch - node.Epoch(c.Owner/2))
	}
	theirs, err := p.node.Observe(p.ctx)
	if err != nil {
		p.Fatal(err)
	}
	both := [2]node.Admission{a, a}
	both[0].Incarnation, both[1].Incarnation = seen.Incarnation, theirs.Incarnation
	if c.TTL == 2 {
		both[0].Incarnation, both[1].Incarnation = "0123", "0123"
	}
	return both
}

func (p *pair) admit(what string, step func(node.Node, context.Context, node.Admission) error) {
	p.Helper()
	p.Logf("%s %+v", what, p.staged[0])
	p.same(what, fault(step(p.node, p.ctx, p.staged[1])), fault(step(p.model, p.ctx, p.staged[0])))
}

func (p *pair) load(c command) {
	p.Helper()
	lock := node.CarriedLock{Resource: c.resource(), Counter: max(1, p.model.observed().Marks.HighWater+fencing.Token(c.Token))}
	if c.Attempt > 0 {
		lock.Owner, lock.Grant, lock.Remaining, lock.TTL, lock.Meta = c.owner(), lock.Counter, longTTL, longTTL, "carried"
		lock.Keyed = c.Attempt == 2
	}
	locks := []node.CarriedLock{lock}
	p.Logf("load %+v", lock)
	p.same("load", fault(p.node.Load(p.ctx, p.staged[1], locks)), fault(p.model.Load(p.ctx, p.staged[0], locks)))
}

// fault is an error as its class: its text is each node's own.
func fault(err error) string {
	var stale *node.StaleEpochError
	switch {
	case err == nil:
		return "no error"
	case errors.As(err, &stale):
		return fmt.Sprintf("stale epoch, own %d", stale.Epoch)
	}
	for _, class := range []error{node.ErrNotAdmitted, node.ErrRaced, node.ErrForeign} {
		if errors.Is(err, class) {
			return class.Error()
		}
	}
	return err.Error()
}

func (p *pair) observe(n node.Node) node.Observation {
	seen, err := n.Observe(p.ctx)
	if err != nil {
		p.Fatal(err)
	}
	seen.Incarnation = ""
	return seen
}

// survey gives all locks in order, without what time does to them.
func (p *pair) survey(n node.Node, epoch node.Epoch) any {
	all := make(map[string]node.CarriedLock)
	for cursor := ""; ; {
		locks, next, err := n.Survey(p.ctx, epoch, cursor)
		if err != nil {
			return fault(err)
		}
		for _, lock := range locks {
			lock.Remaining = 0
			all[lock.Resource] = lock
		}
		if cursor = next; cursor == "" {
			return all // printed in the order of its keys
		}
	}
}

func (p *pair) scan(n node.Node, prefix string) any {
	var all []string
	for cursor := ""; ; {
		resources, next, err := n.Scan(p.ctx, prefix, cursor, 2)
		if err != nil {
			return fault(err)
		}
		all = append(all, resources...)
		if cursor = next; cursor == "" {
			slices.Sort(all)
			return slices.Compact(all)
		}
	}
}

// compareWakes compares what the servers were told, up to a mark.
func (p *pair) compareWakes() {
	p.Helper()
	if p.deaf {
		return
	}
	p.heal()
	for server, r := range p.turns {
		op := node.Op{Epoch: p.model.observed().Epoch, Resource: "mark " + server, Owner: "M", TTL: longTTL}
		op.Ticket = node.Ticket{ID: "mark", Server: server, Arrival: 1}
		for _, op.Kind = range []node.OpKind{node.OpHeartbeat, node.OpEnqueue} {
			p.vote(op)
		}
		op.Kind, op.Ticket = node.OpAcquire, node.Ticket{}
		p.vote(op)
		p.same("turns told to "+server, p.told(r), p.told(p.modelTurns[server]))
	}
}

func (p *pair) told(r *recorder) (turns []string) {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		select {
		case turn := <-r.turns:
			if turns = append(turns, turn); strings.HasPrefix(turn, `"mark `) {
				return turns
			}
		case <-timeout.C:
			return append(turns, "no mark")
		}
	}
}
