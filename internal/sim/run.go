package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// Result is the outcome of a run.
type Result struct {
	Violation    *Violation // nil: every promise was kept
	Acquisitions int
	Extensions   int
	Calls        int
	Vacancies    Vacancies
	Invariants   map[lockcore.Invariant]int // broken invariants as the servers saw them; the unchanged protocol has none, or there is a Violation
	Hash         uint64                     // hash of the trace
	Trace        []string
}

// Run executes a plan.
func Run(t *testing.T, plan Plan) Result {
	t.Helper()
	return run(t, plan, false)
}

// Trace executes a plan and keeps the lines of its trace.
func Trace(t *testing.T, plan Plan) Result {
	t.Helper()
	return run(t, plan, true)
}

func run(t *testing.T, plan Plan, keep bool) (result Result) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		w := newWorld(plan, keep)
		w.live()
		w.invariants.judge(w)
		result = w.check.Result
		result.Invariants = w.invariants.broken
		result.Hash, result.Trace = w.trace.hash, w.trace.lines
	})
	return result
}

func newWorld(plan Plan, keep bool) *world {
	w := &world{plan: plan, began: time.Now(), instant: -1, fates: newFates(plan.Seed), stir: make(chan struct{}, 1), keyed: make(map[string]bool), askers: make(map[string]bool)}
	w.trace = trace{hash: fnvOffset, keep: keep}
	w.alarm = time.NewTimer(time.Hour)
	for i := range plan.Resources {
		w.names = append(w.names, "r"+strconv.Itoa(i+1))
	}
	for _, resource := range w.names {
		w.names = append(w.names, lockcore.SlotNames(resource, plan.Slots)...)
	}
	w.check = newChecker(w)
	for i := range plan.Nodes * plan.Sets {
		w.nodes = append(w.nodes, newNode(w, i))
	}
	for _, listed := range plan.Maps {
		nodes := make([][]node.Node, len(listed))
		for i, set := range listed {
			for _, n := range w.nodes {
				if n.set == set {
					nodes[i] = append(nodes[i], n.model)
				}
			}
		}
		w.mapNames = append(w.mapNames, sets.MapName(nodes))
	}
	for i := range plan.Servers {
		w.servers = append(w.servers, &server{w: w, id: i})
	}
	for i := range plan.Clients {
		w.clients = append(w.clients, &client{w: w, id: i + 1, rng: rand.New(rand.NewPCG(plan.Seed, uint64(i)<<32|1))})
	}
	return w
}

// live runs the plan from the first start to the last check.
func (w *world) live() {
	defer w.end()
	for _, s := range w.servers {
		w.after(between(w.fates.draw(s.id, 0, 0), 0, 100*time.Millisecond), s.start)
	}
	for _, c := range w.clients {
		w.after(w.plan.MaxTTL/8, c.think)
	}
	for _, f := range w.plan.Faults {
		if f.At < w.plan.Length {
			w.at(f.At, func() { w.strike(f) })
		}
	}
	w.troubled = w.recovery(1)
	w.check.lookForVacant()
	w.runUntil(w.plan.Length)
	if w.plan.Lists != nil { // until all servers are configured alike, some set may stay shut
		return
	}
	w.heal()
	w.completeChange()
	w.checkQueues()
	w.checkService()
	w.drainQueues()
	if w.plan.Tidy { // no vote may remain for as long as its TTL
		w.runUntil(max(w.now()+time.Second, w.calmAt+givenUp))
		w.checkClean(false)
	}
	w.runUntil(w.now() + w.plan.MaxTTL + 3*time.Second)
	if w.plan.Clocks { // a jump just before the calm may be noticed after it, and then its node has to rejoin
		w.awaitWhole()
	}
	w.checkClean(true)
}

// end stops every server.
func (w *world) end() {
	for _, s := range w.servers {
		s.crash()
	}
	w.lives.Wait()
	synctest.Wait()
	for w.acceptAll(); w.underWay > 0; w.acceptAll() { // the releases of an acquisition of several take time
		time.Sleep(w.plan.NodeTimeout)
		synctest.Wait()
	}
	for _, caller := range w.callers {
		close(caller)
	}
	w.calling.Wait()
}

// recovery is the maximum time after the last fault until a server with that pace serves again and has brought
// the nodes back. A request whose response was lost takes time, and a node that has just restarted waits for
// the longest TTL.
func (w *world) recovery(slower pace) time.Duration {
	return slower.own(w.plan.MaxTTL+portTimeout) + 5*time.Second
}

// recovered is when the server must serve again. A clock's jump before the last fault may be noticed after it,
// when a quorum is back (rule 22), and its node is quarantined only then.
func (w *world) recovered(s *server) time.Duration {
	return max(w.calmAt, w.expelledAt) + w.recovery(w.plan.slower(s.id))
}

// checkService waits until all nodes vote, and then acquires every resource through every server. Each must be
// granted.
func (w *world) checkService() {
	w.awaitWhole()
	for _, s := range w.servers {
		deadline := w.recovered(s)
		if w.plan.Tidy { // there can be no lock whose TTL would have to pass first
			deadline = w.calmAt + givenUp
		}
		for _, resource := range w.names {
			w.checkGrant(s, resource, deadline)
		}
	}
}

// awaitWhole waits until the run is whole, or all servers should serve again. If a server is slow, it is the
// first one; the last one brings the nodes back.
func (w *world) awaitWhole() {
	slowest, fastest := w.servers[0], w.servers[len(w.servers)-1]
	for !w.whole() && !w.check.failed() && w.now() < w.recovered(slowest) {
		w.runUntil(w.now() + w.plan.Watch/2)
		for _, n := range w.nodes {
			if w.now() > w.recovered(fastest) && !n.votes() {
				w.check.violatef("recovery", "%s does not vote %s after the last fault: %s", n.name, w.now()-w.calmAt, w.nodeStory(n))
			}
		}
	}
}

// whole reports whether every node votes, every server knows it, and every client has released all its leases.
func (w *world) whole() bool {
	for _, n := range w.nodes {
		if !n.votes() {
			return false
		}
	}
	for _, s := range w.servers {
		if s.locker.Status().Voting < len(w.nodes) {
			return false
		}
	}
	return !slices.ContainsFunc(w.clients, func(c *client) bool { return !c.quiet })
}

// checkGrant takes and releases one lease. Until the deadline the resource may be held for a client that
// forgot its lease.
func (w *world) checkGrant(s *server, resource string, deadline time.Duration) {
	c := &client{w: w, id: 99, rng: rand.New(rand.NewPCG(w.plan.Seed, 99)), quiet: true}
	for try := 1; c.current() == nil; try++ {
		if w.check.failed() {
			return
		}
		const tries = 3
		if try > tries && w.now() > deadline {
			w.check.violatef("recovery", "server %d gets no lease of %s %s after the last fault", s.id+1, resource, w.now()-w.calmAt)
			return
		}
		a := c.acquire(s, wanted{resources: []string{resource}, ttl: w.plan.MaxTTL}, "")
		a.patience = 0
		w.await(c, a)
	}
	w.await(c, c.release(s, c.current()))
}

// checkQueues finds tickets of requests that do not wait any more, before any other request meets them: it would
// be refused a free resource, or its server would be woken and dequeue them. In a tidy plan requests keep their
// order, so nothing excuses such a ticket once no place is kept any more.
func (w *world) checkQueues() {
	if !w.plan.Tidy {
		return
	}
	w.awaitWhole()
	w.runUntil(w.now() + lingers + time.Second)
	for _, n := range w.nodes {
		for _, resource := range w.names {
			if waiting := n.waiting(resource); !n.stale && waiting > 0 && w.plan.Maps == nil {
				w.check.violatef("left ticket", "%s has %d in the queue for %s, and no client waits", n.name, waiting, resource)
			}
		}
	}
}

// drainQueues acquires resources that have tickets although no client waits: a request that arrived after its
// waiter's dequeue enqueued the ticket again. Each acquisition wakes the server of one such ticket, which
// dequeues it.
func (w *world) drainQueues() {
	const rounds = 30
	for range rounds {
		for _, resource := range w.names {
			if slices.ContainsFunc(w.nodes, func(n *simNode) bool { return !n.stale && n.waiting(resource) > 0 }) {
				w.checkGrant(w.servers[0], resource, w.now()+w.recovery(w.plan.slower(0)))
				w.runUntil(w.now() + time.Second)
			}
		}
	}
}

// await runs one call until it has returned.
func (w *world) await(c *client, a *action) {
	c.done = false
	c.begin(a)
	w.runWhile(func() bool { return !c.done })
}

// givenUp is how long after the last fault all leases are released whose client and server are alive. A
// request that was lost at the end is given up within 2.3 s, and its release is repeated after another 2 s.
const givenUp = 5 * time.Second

// checkClean finds locks that were left behind; bound says whether those of bound owners count. At the first
// call a node may be quarantined because its jump was noticed late.
func (w *world) checkClean(bound bool) {
	for _, n := range w.nodes {
		if n.stale || !bound && !n.votes() {
			continue
		}
		if locked := n.locked(bound); len(locked) > 0 {
			w.check.violatef("left behind", "%s holds locks of %v, and no client does: %s", n.name, locked, w.nodeStory(n))
		}
		for _, resource := range w.names {
			// If the resource has moved, earlier tickets may remain on the old set.
			if waiting := n.waiting(resource); waiting > 0 && w.plan.Maps == nil {
				w.check.violatef("left behind", "%s has %d in the queue for %s, and no client waits", n.name, waiting, resource)
			}
		}
	}
}

func (w *world) nodeStory(n *simNode) string {
	var story strings.Builder
	story.WriteString(n.model.String())
	for _, s := range w.servers {
		if s.alive() {
			for _, st := range s.locker.Status().Nodes {
				if st.Name == n.name {
					fmt.Fprintf(&story, "; server %d: %s %s", s.id+1, st.State, st.Reason)
				}
			}
		}
	}
	return story.String()
}

// logf adds a line to the trace, if the trace is kept.
func (w *world) logf(format string, args ...any) {
	if w.trace.keep {
		w.trace.lines = append(w.trace.lines, fmt.Sprintf("%12.6f ", w.now().Seconds())+fmt.Sprintf(format, args...))
	}
}

// record puts what a node did into the trace.
func (w *world) record(m *message, reply any) {
	t := &w.trace
	t.number(int64(w.now()))
	t.number(int64(m.kind)<<16 | int64(m.server.id)<<8 | int64(m.node.id))
	if m.kind == int(node.OpAcquire) {
		w.check.ledger(m.op.Resource).set = m.node.set
		w.check.asked(m.op)
		if m.op.Attempt != "" {
			w.keyed[m.op.Owner] = true
		}
	}
	if r, ok := reply.(node.Reply); ok {
		switch {
		case r.Recreated && w.keyed[m.op.Owner]: // by an extend, which names no attempt
			m.node.bound[m.op.Owner] = true
		case m.kind == int(node.OpAcquire) && r.Outcome == node.Granted && !r.Existing:
			delete(m.node.bound, m.op.Owner)
		}
		t.text(m.op.Owner)
		t.number(int64(r.Outcome)<<56 | int64(r.Grant))
	}
	if t.keep {
		w.logMessage(m, reply)
	}
}

func (w *world) logMessage(m *message, reply any) {
	what := fmt.Sprintf("%s %s %d", kinds[m.kind], m.sort.a, m.sort.n)
	switch r, vote := reply.(node.Reply); {
	case m.kind == kindOf("observe"), m.kind == kindOf("time"), m.kind == int(node.OpHeartbeat):
		return
	case vote:
		what = fmt.Sprintf("%s %s %.6s ticket %.6s token %d above %d epoch %d", kinds[m.kind], m.op.Resource, m.op.Owner, m.op.Ticket.ID, m.op.Token, m.op.Above, m.op.Epoch)
		reply = fmt.Sprintf("%s %d epoch %d", r.Outcome, r.Grant, r.Epoch)
	}
	w.logf("server %d (life %d) -> %s: %s: %+v", m.server.id+1, m.epoch, m.node.name, what, reply)
}
