package nodetest

import (
	"context"
	"flag"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Differential gives a node and a Model the same random commands, including admissions, and compares what they
// print. open makes an empty node for one sequence of commands; done ends it. The sequences are the same in
// every run, unless RAPID_SEED draws others, as make explore does. A sequence that fails is shrunk and printed
// with its seed.
func Differential(t *testing.T, open func() (h Harness, done func())) {
	t.Helper()
	differential(t, math.MaxInt, open)
}

func differential(t *testing.T, sequences int, open func() (h Harness, done func())) {
	t.Helper()
	run, failed := 0, false
	rapid.Check(t, func(rt *rapid.T) {
		if run++; run > sequences && !failed { // a failed sequence is shrunk
			return
		}
		passed := false
		defer func() { failed = failed || !passed }()
		h, done := open()
		defer done()
		p := newPair(t, rt, h)
		defer p.stop()
		commands := rapid.SliceOfN(rapid.Custom(drawCommand), 20, 120).Draw(rt, "commands")
		for _, c := range commands {
			p.run(c)
		}
		p.compareWakes()
		p.readAll()
		passed = true
	})
}

// init makes rapid draw the same sequences in every run, unless -rapid.seed or RAPID_SEED says
// otherwise: a test that passed must not fail because of the draw.
func init() {
	if seed := flag.Lookup("rapid.seed"); seed.Value.String() == "0" {
		if err := seed.Value.Set("1"); err != nil {
			panic(err)
		}
	}
}

// command is one step. Its numbers choose among few possibilities. Their meaning depends on the model's state
// when the command is run.
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

// commandKinds lists each kind as often as its weight in the draw.
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

// GoString formats a failed sequence.
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

// pair is a node and the model with which it is compared: two suites that get the same lines. Their numbers
// are absolute, taken from the model.
type pair struct {
	testing.TB
	rt      *rapid.T
	ctx     context.Context
	cancel  context.CancelFunc
	cleanup []func()

	node, model *suite
	joined      node.Cluster // the caller's cluster
	deaf        bool         // a restart broke the node's subscriptions
}

func newPair(t *testing.T, rt *rapid.T, h Harness) *pair {
	t.Helper()
	p := &pair{TB: t, rt: rt}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.node, p.model = newSuite(p, way{}), newSuite(p, way{})
	p.node.Harness = h
	m := NewModel(ModelOptions{})
	p.model.Harness = Harness{Node: m, Restart: func() { m.Restart(true) }, Wipe: m.Wipe}
	p.join(0)
	for _, s := range []*suite{p.node, p.model} {
		s.plans["P"] = node.Admission{}
		for i, t := range drawnTickets() {
			s.tickets[fmt.Sprint(i)] = t
		}
		s.subscribe(line{words: []string{"s0", "s1"}})
	}
	return p
}

// Methods of a test, for the suites. rapid's own Context and Cleanup belong to the whole check, and its Fatalf
// triggers the shrinking of a sequence.

// Context ends with the pair.
func (p *pair) Context() context.Context { return p.ctx }

// Cleanup calls f in stop.
func (p *pair) Cleanup(f func()) { p.cleanup = append(p.cleanup, f) }

// Fatalf fails the sequence.
func (p *pair) Fatalf(format string, args ...any) { p.rt.Fatalf(format, args...) }

// Fatal fails the sequence.
func (p *pair) Fatal(args ...any) { p.rt.Fatal(args...) }

// Logf prints only for a failed sequence.
func (p *pair) Logf(format string, args ...any) { p.rt.Logf(format, args...) }

func (p *pair) stop() {
	p.cancel()
	for _, f := range p.cleanup {
		f()
	}
}

// differf fails, unless so much time has passed that something may have expired on only one of the two: a
// server that enqueued expires after node.EnqueuedTTL.
func (p *pair) differf(format string, args ...any) {
	p.Helper()
	if time.Since(p.model.began) > node.EnqueuedTTL/2 {
		p.rt.Skip("the machine is too slow: something may have expired")
	}
	p.Fatalf(format+"\nmodel: %s", append(args, p.model.Node)...)
}

// both executes a line on the node and on the model.
func (p *pair) both(text string) {
	p.Helper()
	got, want := p.node.run(text), p.model.run(text)
	p.Logf("%s: %s", text, want)
	if got != want {
		p.differf("%s:\n node %s\nmodel %s", text, got, want)
	}
}

// vote submits an operation to both.
func (p *pair) vote(text string) node.Reply {
	p.Helper()
	l, err := parseLine(text)
	p.model.must(err)
	op := p.model.op(l)
	want, got := p.model.do(op), p.node.do(op)
	near := got
	if off := got.Remaining - want.Remaining; off.Abs() < apart && (got.Remaining == 0) == (want.Remaining == 0) {
		near.Remaining = want.Remaining // their clocks were not read at the same time
	}
	var plain scale
	node, model := plain.reply(op.Kind, near), plain.reply(op.Kind, want)
	p.Logf("%s: %s", text, model)
	if node != model {
		p.differf("%s:\n node %s\nmodel %s", text, node, model)
	}
	return want
}

func (c command) resource() string { return []string{"a", `"b *"`, "ü"}[c.Resource] }
func (c command) owner() string    { return []string{"L0", "L1", "L2"}[c.Owner] }
func (c command) ttl() string      { return []string{"1m", "2m", "2m1s"}[c.TTL] }

func (c command) cluster() node.Cluster {
	return node.Cluster{Nodes: 3, Hash: []string{"c0ffee", "beef", "beef"}[c.Other]}
}

// drawnTickets returns two tickets with the same arrival, one with two arrivals, one of a server that does not
// listen, and a keyed one of two servers.
func drawnTickets() []node.Ticket {
	return []node.Ticket{
		{ID: "t0", Server: "s0", Arrival: 50, Holder: "a holder"}, {ID: "t1", Server: "s1", Arrival: 50},
		{ID: "t2", Server: "s0", Arrival: 40}, {ID: "t2", Server: "s0", Arrival: 90}, {ID: "t3", Server: "s2", Arrival: 45},
		{ID: "k1", Server: "s0", Arrival: 60, Keyed: true}, {ID: "k1", Server: "s1", Arrival: 70, Keyed: true}, {ID: "k1", Server: "s1", Arrival: 70},
	}
}

// operation formats an operation, with values near the model's state.
func (p *pair) operation(c command) string {
	verb, seen := c.Kind, p.observed()
	if verb == "wait" {
		verb = "acquire"
	}
	token := max(1, p.lastGrant(c.resource())+fencing.Token(c.Token))
	text, ticket := verb, drawnTickets()[c.Ticket]
	for _, word := range operations[verb].words {
		text += " " + map[string]string{
			"resource": c.resource(), "owner": c.owner(), "token": fmt.Sprint(token), "ticket": fmt.Sprint(c.Ticket), "server": ticket.Server,
		}[word]
	}
	name := seen.Marks.Map.Name
	if c.Epoch == 2 && c.Other == 2 {
		name += "x"
	}
	text += fmt.Sprintf(` for=%s meta="meta %d" epoch=%d map=%q`, c.ttl(), c.Other, seen.Epoch+node.Epoch(c.Epoch), name)
	if c.Attempt > 0 {
		text += fmt.Sprintf(` try=attempt%d scope="scope %d"`, c.Attempt, c.Other)
	}
	switch {
	case c.Kind == "wait":
		text += fmt.Sprintf(" ticket=%d", c.Ticket)
	case c.Kind == "retract" && c.Other > 0:
		text += fmt.Sprintf(" above=%d", token)
	case c.Kind == "release" && c.Other > 0:
		text += " server=" + ticket.Server
	}
	return text
}

// observed is the model's state.
func (p *pair) observed() node.Observation { return p.model.observe() }

// here is the model's epoch and map, for an operation.
func (p *pair) here() string {
	seen := p.observed()
	return fmt.Sprintf("epoch=%d map=%q", seen.Epoch, seen.Marks.Map.Name)
}

// ask executes a line on only the model.
func (p *pair) ask(text string) node.Reply {
	p.Helper()
	l, err := parseLine(text)
	p.model.must(err)
	return p.model.do(p.model.op(l))
}

// lastGrant is the grant of the model's lock, or else its counter.
func (p *pair) lastGrant(resource string) fencing.Token {
	if r := p.ask("read " + resource + " " + p.here()); r.Outcome == node.Granted {
		return r.Grant
	}
	l, err := parseLine("counters " + resource)
	p.model.must(err)
	counters, err := p.model.Node.Counters(p.ctx, p.observed().Epoch, l.words)
	if err != nil {
		return 1
	}
	return counters[0]
}

// run runs one command on both.
func (p *pair) run(c command) {
	p.Helper()
	switch lines := p.lines(c); {
	case lines != nil:
		for _, text := range lines {
			p.both(text)
		}
	case c.Kind == "expire":
		p.expire(c)
	case c.Kind == "join":
		p.join(c.Other)
	case c.Kind == "restart" || c.Kind == "wipe":
		p.strike(c.Kind)
	default:
		if c.Other == 0 && p.ask("read any "+p.here()).Outcome == node.NotAdmitted {
			p.heal()
		}
		p.vote(p.operation(c))
	}
}

// lines formats a command that is neither an operation nor a fault.
func (p *pair) lines(c command) []string {
	seen := p.observed()
	epoch := seen.Epoch + node.Epoch(c.Epoch)
	floor := seen.Marks.HighWater + fencing.Token(c.Token)
	opening := c
	opening.Attempt = 0
	return map[string][]string{
		"bootstrap": {
			fmt.Sprintf("%s bootstrapped=%d cluster=%s/%d", p.plan(opening), p.next(c), p.joined.Hash, p.joined.Nodes), "stage P", "admit P",
		},
		"stage":      {p.plan(c), "stage P"},
		"load":       {p.lock(c), "load P L"},
		"rejoin":     {p.plan(command{Token: c.Token, Epoch: 1}), "stage P", "observe", p.lock(c), "load P L", "admit P"},
		"admit":      {"admit P"},
		"quarantine": {fmt.Sprintf(`quarantine "note %d"`, c.Owner)},
		"raise":      {"raise " + c.ttl()},
		"install":    {fmt.Sprintf("fence %d", epoch)},
		"map":        {fmt.Sprintf("map %q epoch=%d map-floor=%d generation=%d", []string{"", "m1", "m2"}[c.Owner], epoch, floor, c.Attempt)},
		"receive":    {p.lock(c), fmt.Sprintf("receive %q L epoch=%d", seen.Marks.Map.Name+[]string{"", "", "x"}[c.Other], epoch)},
		"observe":    {"observe"},
		"survey":     {fmt.Sprintf("survey epoch=%d", epoch)},
		"counters":   {fmt.Sprintf(`counters a "b *" ü "never used" epoch=%d`, epoch)},
		"scan":       {fmt.Sprintf("scan %q", []string{"", "b *", "*"}[c.Other])},
	}[c.Kind]
}

// strike restarts or wipes both, if the node can be.
func (p *pair) strike(fault string) {
	strikes := func(s *suite) func() {
		return map[string]func(){"restart": s.Restart, "wipe": s.Wipe}[fault]
	}
	if strikes(p.node) == nil {
		return
	}
	p.deaf = p.deaf || fault == "restart"
	strikes(p.model)()
	strikes(p.node)()
}

func (p *pair) join(other int) {
	p.joined = command{Other: other}.cluster()
	p.model.Node.Join(p.joined)
	p.node.Node.Join(p.joined)
}

// heal admits both to the cluster to which they belong.
func (p *pair) heal() {
	p.join(0)
	if seen := p.observed(); seen.Cluster == (command{Other: 1}).cluster() {
		p.join(1)
	}
	p.run(command{Kind: "bootstrap"})
}

// expire lets a lock expire on both. It releases the lock and acquires it again for a very short time, because
// an extend never shortens a lock.
func (p *pair) expire(c command) {
	here := p.here()
	read := "read " + c.resource() + " " + here
	if now := p.vote(read); now.Outcome == node.Granted {
		p.vote(fmt.Sprintf("release %s %s %d %s", c.resource(), now.Owner, now.Grant, here))
	}
	c.Kind, c.TTL = "acquire", 0
	if p.vote(strings.Replace(p.operation(c), "for=1m", "for=1ms", 1)).Outcome != node.Granted {
		return
	}
	for _, s := range []*suite{p.model, p.node} {
		for deadline := time.Now().Add(patience); !strings.HasPrefix(s.run(read), "not held"); {
			if time.Now().After(deadline) {
				p.Fatalf("%s: %s", s.Node.Name(), s.run(read))
			}
		}
	}
}

// next is an epoch for an admission.
func (p *pair) next(c command) node.Epoch {
	seen := p.observed()
	return max(1, max(seen.Epoch, seen.Staged)+1+node.Epoch(c.Owner)-node.Epoch(c.Ticket/4))
}

// plan makes an admission.
func (p *pair) plan(c command) string {
	seen, note := p.observed(), p.observed().Note
	switch {
	case c.Attempt == 1: // as if it had no note
		note = ""
	case seen.Admitted:
		note = node.MissedNote(seen.Epoch - node.Epoch(c.Owner/2))
	}
	text := fmt.Sprintf("plan P epoch=%d bootstrapped=%d cluster=%s/3 floor=%d note=%q map=%q since=%d map-floor=%d generation=%d",
		p.next(c), seen.Epoch+node.Epoch(c.Epoch), c.cluster().Hash, max(100, seen.Marks.HighWater+fencing.Token(c.Token)), note,
		seen.Marks.Map.Name, seen.Marks.Map.Epoch, seen.Marks.Map.Floor, seen.Marks.Map.Generation)
	if c.TTL == 2 {
		text += " incarnation=another"
	}
	if c.Attempt == 2 {
		text += " only-if-empty"
	}
	return text
}

// lock makes a lock that is carried.
func (p *pair) lock(c command) string {
	counter := max(1, p.observed().Marks.HighWater+fencing.Token(c.Token))
	text := fmt.Sprintf("lock L resource=%s counter=%d", c.resource(), counter)
	if c.Attempt > 0 {
		text += fmt.Sprintf(" owner=%s grant=%d left=1m meta=carried", c.owner(), counter)
	}
	if c.Attempt == 2 {
		text += " keyed"
	}
	return text
}

// readAll compares all that can be read.
func (p *pair) readAll() {
	p.Helper()
	for _, kind := range []string{"observe", "survey", "counters", "scan"} {
		p.run(command{Kind: kind})
	}
	for _, resource := range []string{"a", `"b *"`, "ü", `"never used"`} {
		p.vote("read " + resource + " " + p.here())
	}
}

// compareWakes compares the servers' notifications, up to one that it causes.
func (p *pair) compareWakes() {
	p.Helper()
	if p.deaf {
		return
	}
	p.heal()
	seen := p.observed()
	p.both(fmt.Sprintf("by %q epoch=%d", seen.Marks.Map.Name, seen.Epoch))
	p.both("wakes s0")
	p.both("wakes s1")
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
