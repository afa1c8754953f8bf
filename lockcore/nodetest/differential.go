package nodetest

import (
	"context"
	"flag"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Differential gives a node and a Model the same random commands, admissions included,
// and compares the replies. open makes a node that holds nothing, for one sequence of
// commands; done ends it. The sequences are the same in every run; RAPID_SEED draws
// others, as make explore does. A sequence that fails is shrunk and printed with its seed.
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
// RAPID_SEED says otherwise: a test that passed must not fail because of the draw.
func fixSeed(t *testing.T) {
	t.Helper()
	if flag.Lookup("rapid.seed").Value.String() != "0" {
		return
	}
	if err := flag.Set("rapid.seed", "1"); err != nil {
		t.Fatal(err)
	}
}

// command is one step. Its numbers are choices among few; their meaning follows from the
// model's state when the command is run.
type command struct {
	Kind     string
	Resource int
	Owner    int
	Ticket   int
	Attempt  int
	TTL      int
	Token    int // added to the lock's grant, or to the counter
	Epoch    int // added to the node's epoch
	Other    int
}

// commandKinds has each kind as often as it is to be drawn.
func commandKinds() []string {
	//nolint:dupword // on purpose
	return strings.Fields(`
		acquire acquire acquire acquire acquire acquire acquire acquire acquire acquire acquire acquire
		confirm confirm confirm confirm confirm extend extend extend extend extend extend extend
		release release release release release release release-after release-after release-after break break break retract retract retract retract retract read read
		wait wait wait wait wait wait wait wait enqueue enqueue enqueue dequeue dequeue dequeue forget heartbeat heartbeat
		expire expire expire expire install raise survey counters scan observe map receive
		bootstrap stage load admit rejoin rejoin quarantine join restart wipe`)
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
		Epoch:    pick("epoch", 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, 1, 2),
		Other:    pick("other", 0, 0, 0, 0, 1, 2),
	}
}

// pair is a node and the model that it is compared with.
type pair struct {
	*rapid.T
	Harness
	ctx     context.Context
	cancel  context.CancelFunc
	cleanup []func()
	began   time.Time
	model   *Model

	joined node.Cluster                 // the caller's
	staged map[node.Node]node.Admission // the last that was tried: each names its node's incarnation
	wakes  map[string][2]*recorder      // of each server: the node's and the model's
	deaf   bool                         // a restart broke the node's subscriptions
}

func newPair(t *rapid.T, h Harness) *pair {
	p := &pair{
		T: t, Harness: h, began: time.Now(), model: NewModel(ModelOptions{}),
		staged: make(map[node.Node]node.Admission), wakes: make(map[string][2]*recorder),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.join(0)
	for _, server := range []string{"s0", "s1"} {
		p.wakes[server] = [2]*recorder{listen(p, p.Node, server), listen(p, p.model, server)}
	}
	return p
}

// Context is for listen: rapid's own ends with the whole check.
func (p *pair) Context() context.Context { return p.ctx }

// Cleanup calls f in stop: rapid's own waits for the whole check.
func (p *pair) Cleanup(f func()) { p.cleanup = append(p.cleanup, f) }

func (p *pair) stop() {
	p.cancel()
	for _, f := range p.cleanup {
		f()
	}
}

// differf fails, unless so much time has passed that something may have expired on one
// of the two only: a server that enqueued, after node.EnqueuedTTL.
func (p *pair) differf(format string, args ...any) {
	p.Helper()
	if time.Since(p.began) > node.EnqueuedTTL/2 {
		p.Skip("the machine is too slow: something may have expired")
	}
	p.Fatalf(format+"\nmodel: %s", append(args, p.model)...)
}

// both does the same on the node and on the model, and compares the results as text.
func (p *pair) both(what string, do func(n node.Node) any) {
	p.Helper()
	got, want := fmt.Sprintf("%+v", do(p.Node)), fmt.Sprintf("%+v", do(p.model))
	p.Logf("%s: %s", what, want)
	if got != want {
		p.differf("%s:\n node %s\nmodel %s", what, got, want)
	}
}

// vote submits the same operation to both.
func (p *pair) vote(op node.Op) (reply node.Reply) {
	p.Helper()
	want := p.model.Apply(op)
	got, err := Submit(p.Node, op)
	if err != nil {
		p.Fatal(err)
	}
	p.Logf("%s: %s", brief(op), brief(want))
	near := got
	if off := got.Remaining - want.Remaining; off.Abs() < apart && (got.Remaining == 0) == (want.Remaining == 0) {
		near.Remaining = want.Remaining // their clocks were not read at the same time
	}
	var plain scale
	if node, model := plain.reply(op.Kind, near), plain.reply(op.Kind, want); node != model {
		p.differf("%s:\n node %s\nmodel %s", brief(op), node, model)
	}
	return want
}

// brief prints the fields of a structure that are not zero.
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

func (c command) cluster() node.Cluster {
	return node.Cluster{Nodes: 3, Hash: []string{"c0ffee", "beef", "beef"}[c.Other]}
}

// ticket returns one of: two with the same arrival, one with two arrivals, one of a
// server that does not listen, and a keyed one of two servers.
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
		Kind: kind, Epoch: p.observed().Epoch + node.Epoch(c.Epoch), Resource: c.resource(), Owner: c.owner(), TTL: c.ttl(),
		Token: max(1, p.lastGrant(c.resource())+fencing.Token(c.Token)), Meta: fmt.Sprintf("meta %d", c.Other),
		Map: p.mapName(),
	}
	if c.Epoch == 2 && c.Other == 2 {
		op.Map += "x"
	}
	if c.Attempt > 0 {
		op.Attempt, op.Scope = fmt.Sprintf("attempt%d", c.Attempt), fmt.Sprintf("scope %d", c.Other)
	}
	switch {
	case c.Kind == "wait" || kind == node.OpEnqueue || kind == node.OpDequeue || kind == node.OpForget || kind == node.OpHeartbeat:
		op.Ticket = c.ticket()
	case kind == node.OpRetract && c.Other > 0:
		op.Above = op.Token
	case kind == node.OpRelease && c.Other > 0:
		op.Ticket.Server = c.ticket().Server
	}
	return op
}

// mapName is the name of the model's map.
func (p *pair) mapName() string { return p.observed().Marks.Map.Name }

func (p *pair) read(resource string) node.Op {
	op := read(resource)
	op.Map = p.mapName()
	return op
}

// observed is the model's state.
func (p *pair) observed() node.Observation {
	seen, _ := p.model.Observe(p.ctx)
	return seen
}

// lastGrant is the grant of the model's lock, or else its counter.
func (p *pair) lastGrant(resource string) fencing.Token {
	if r := p.model.Apply(p.read(resource)); r.Outcome == node.Granted {
		return r.Grant
	}
	counters, err := p.model.Counters(p.ctx, p.observed().Epoch, []string{resource})
	if err != nil {
		return 1
	}
	return counters[0]
}

// run runs one command on both.
func (p *pair) run(c command) {
	p.Helper()
	kinds := map[string]node.OpKind{
		"acquire": node.OpAcquire, "wait": node.OpAcquire, "confirm": node.OpConfirm, "extend": node.OpExtend,
		"release": node.OpRelease, "release-after": node.OpReleaseAfter, "break": node.OpBreak, "retract": node.OpRetract, "read": node.OpRead,
		"enqueue": node.OpEnqueue, "dequeue": node.OpDequeue, "forget": node.OpForget, "heartbeat": node.OpHeartbeat,
	}
	if kind, isVote := kinds[c.Kind]; isVote {
		if c.Other == 0 && p.model.Apply(p.read("any")).Outcome == node.NotAdmitted {
			p.heal()
		}
		p.vote(p.op(kind, c))
		return
	}
	switch c.Kind {
	case "expire":
		p.expire(c)
	case "join":
		p.join(c.Other)
	case "restart":
		if p.Restart != nil {
			p.deaf = true
			p.model.Restart(true)
			p.Restart()
		}
	case "wipe":
		if p.Wipe != nil {
			p.model.Wipe()
			p.Wipe()
		}
	case "bootstrap", "stage", "load", "rejoin", "admit", "quarantine":
		p.runAdmission(c)
	default:
		p.runRead(c)
	}
}

func (p *pair) join(other int) {
	p.joined = command{Other: other}.cluster()
	p.model.Join(p.joined)
	p.Node.Join(p.joined)
}

// heal admits both to the cluster to which they belong.
func (p *pair) heal() {
	p.join(0)
	if seen := p.observed(); seen.Cluster == (command{Other: 1}).cluster() {
		p.join(1)
	}
	p.run(command{Kind: "bootstrap"})
}

// expire lets a lock expire on both: it is released, and acquired again for almost no
// time. (An extend never shortens.)
func (p *pair) expire(c command) {
	if now := p.vote(p.read(c.resource())); now.Outcome == node.Granted {
		p.vote(node.Op{
			Kind: node.OpRelease, Epoch: p.observed().Epoch, Map: p.mapName(), Resource: c.resource(), Owner: now.Owner, Token: now.Grant,
		})
	}
	op := p.op(node.OpAcquire, c)
	op.TTL = time.Millisecond
	if p.vote(op).Outcome != node.Granted {
		return
	}
	for _, n := range []node.Node{p.model, p.Node} {
		deadline := time.Now().Add(patience)
		for {
			r, err := Submit(n, p.read(c.resource()))
			if err != nil || time.Now().After(deadline) {
				p.Fatalf("%s: %+v, %v", n.Name(), r, err)
			}
			if r.Outcome == node.NotHeld {
				break
			}
		}
	}
}

func (p *pair) runAdmission(c command) {
	p.Helper()
	switch c.Kind {
	case "bootstrap":
		p.newAdmission(c, func(a *node.Admission) {
			a.Bootstrapped, a.Cluster, a.OnlyIfEmpty = a.Epoch, p.joined, false
		})
		p.admit("stage", node.Node.Stage)
		p.admit("admit", node.Node.Admit)
	case "stage":
		p.newAdmission(c, func(*node.Admission) {})
		p.admit("stage", node.Node.Stage)
	case "load":
		p.load(c)
	case "rejoin":
		p.newAdmission(command{Kind: c.Kind, Token: c.Token, Epoch: 1}, func(*node.Admission) {})
		p.admit("stage", node.Node.Stage)
		p.runRead(command{Kind: "observe"})
		p.load(c)
		p.admit("admit", node.Node.Admit)
	case "admit":
		p.admit("admit", node.Node.Admit)
	case "quarantine":
		p.both("quarantine", func(n node.Node) any { return class(n.Quarantine(p.ctx, fmt.Sprintf("note %d", c.Owner))) })
	}
}

// newAdmission makes an admission for each of the two.
func (p *pair) newAdmission(c command, change func(*node.Admission)) {
	seen := p.observed()
	a := node.Admission{
		Epoch: max(1, max(seen.Epoch, seen.Staged)+1+node.Epoch(c.Owner)-node.Epoch(c.Ticket/4)), Bootstrapped: seen.Epoch + node.Epoch(c.Epoch), Cluster: c.cluster(),
		Floor: max(100, seen.Marks.HighWater+fencing.Token(c.Token)), MaxTTL: maxTTL, OnlyIfEmpty: c.Attempt == 2, Note: seen.Note, Map: seen.Marks.Map,
	}
	switch {
	case c.Attempt == 1: // as if it had no note
		a.Note = ""
	case seen.Admitted:
		a.Note = node.MissedNote(seen.Epoch - node.Epoch(c.Owner/2))
	}
	change(&a)
	for _, n := range []node.Node{p.model, p.Node} {
		a.Incarnation = p.observe(n).Incarnation
		if c.TTL == 2 {
			a.Incarnation = "0123"
		}
		p.staged[n] = a
	}
}

func (p *pair) admit(what string, step func(node.Node, context.Context, node.Admission) error) {
	p.Helper()
	p.Logf("%s %+v", what, p.staged[p.model])
	p.both(what, func(n node.Node) any { return class(step(n, p.ctx, p.staged[n])) })
}

func (p *pair) load(c command) {
	p.Helper()
	lock := p.carried(c)
	p.Logf("load %+v", lock)
	p.both("load", func(n node.Node) any { return class(n.Load(p.ctx, p.staged[n], []node.CarriedLock{lock})) })
}

func (p *pair) carried(c command) node.CarriedLock {
	lock := node.CarriedLock{Resource: c.resource(), Counter: max(1, p.observed().Marks.HighWater+fencing.Token(c.Token))}
	if c.Attempt > 0 {
		lock.Owner, lock.Grant, lock.Remaining, lock.TTL, lock.Meta = c.owner(), lock.Counter, longTTL, longTTL, "carried"
		lock.Keyed = c.Attempt == 2
	}
	return lock
}

// runRead compares what one of the reading calls returns, or each of them ("read all").
func (p *pair) runRead(c command) {
	p.Helper()
	epoch := p.observed().Epoch + node.Epoch(c.Epoch)
	resources := []string{"a", "b *", "ü", "never used"}
	calls := map[string]func(n node.Node) any{
		"raise": func(n node.Node) any { return class(n.RaiseMaxTTL(p.ctx, c.ttl())) },
		"install": func(n node.Node) any {
			marks, err := n.InstallEpoch(p.ctx, epoch)
			return []any{marks, class(err)}
		},
		"map": func(n node.Node) any {
			return class(n.InstallMap(p.ctx, node.Map{Name: []string{"", "m1", "m2"}[c.Owner], Epoch: epoch, Floor: p.observed().Marks.HighWater + fencing.Token(c.Token), Generation: int64(c.Attempt)}))
		},
		"receive": func(n node.Node) any {
			return class(n.Receive(p.ctx, epoch, p.mapName()+[]string{"", "", "x"}[c.Other], []node.CarriedLock{p.carried(c)}))
		},
		"observe": func(n node.Node) any {
			seen := p.observe(n)
			seen.Incarnation = ""
			return seen
		},
		"survey": func(n node.Node) any {
			locks, err := surveyAll(p.ctx, n, epoch)
			byName := make(map[string]node.CarriedLock) // printed in the order of its keys
			for _, lock := range locks {
				lock.Remaining = 0
				byName[lock.Resource] = lock
			}
			return []any{byName, class(err)}
		},
		"counters": func(n node.Node) any {
			counters, err := n.Counters(p.ctx, epoch, resources)
			return []any{counters, class(err)}
		},
		"scan": func(n node.Node) any {
			found, err := scanAll(p.ctx, n, []string{"", "b *", "*"}[c.Other], 2)
			return []any{found, class(err)}
		},
	}
	if c.Kind != "read all" {
		p.both(c.Kind, calls[c.Kind])
		return
	}
	for _, kind := range []string{"observe", "survey", "counters", "scan"} {
		p.both(kind, calls[kind])
	}
	for _, resource := range resources {
		p.vote(p.read(resource))
	}
}

// class is an error without its text.
func class(err error) string {
	var plain scale
	return plain.failure(err)
}

func (p *pair) observe(n node.Node) node.Observation {
	seen, err := n.Observe(p.ctx)
	if err != nil {
		p.Fatal(err)
	}
	seen.Version, seen.Role = "", "" // the model has none
	return seen
}

// compareWakes compares the servers' notifications, up to one that it causes.
func (p *pair) compareWakes() {
	p.Helper()
	if p.deaf {
		return
	}
	p.heal()
	for server, recorders := range p.wakes {
		op := node.Op{Epoch: p.observed().Epoch, Map: p.mapName(), Resource: "mark " + server, Owner: "M", TTL: longTTL}
		op.Ticket = node.Ticket{ID: "mark", Server: server, Arrival: 1}
		for _, op.Kind = range []node.OpKind{node.OpHeartbeat, node.OpEnqueue} {
			p.vote(op)
		}
		op.Kind, op.Ticket = node.OpAcquire, node.Ticket{}
		p.vote(op)
		if got, want := recorders[0].untilMark(), recorders[1].untilMark(); got != want {
			p.differf("notifications of %s:\n node %s\nmodel %s", server, got, want)
		}
	}
}

// untilMark returns the notifications up to that of compareWakes.
func (r *recorder) untilMark() (wakes string) {
	for {
		wake, ok := r.next()
		wakes += fmt.Sprintf("%+v\n", wake)
		if !ok || wake.ticket.ID == "mark" {
			return wakes
		}
	}
}
