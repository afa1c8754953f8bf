package sim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/memstore"
)

// Mutant is a protocol with one rule switched off. The zero value is the unchanged protocol.
type Mutant struct {
	Rule string // the rule's number
	Name string // what the mutant does wrong

	weak replica.Weakness
	wrap func(*simNode) rules
	plan func(*Plan) // adds the faults or requests against which the rule protects, if few plans have them

	nodes     int                   // number of nodes with which the missing rule shows sooner; 0 for 3
	force     bool                  // nodes that do not respond count as lost
	longer    bool                  // leases are longer than any quarantine
	careless  bool                  // votes are not retracted
	blunt     bool                  // a break deletes locks before a quorum raises its counters past its token
	keeps     bool                  // a failed acquisition of several does not release the parts that it took
	idle      bool                  // an acquisition of several does not extend its parts until it is complete
	unheeded  bool                  // a node whose clock has jumped is not expelled
	shares    bool                  // epochs are rounded, so that rejoins share one
	unwatched bool                  // servers do not read the nodes' clocks
	rashly    bool                  // a node is expelled without checking whose clock jumped and whether the others are a quorum
	lasting   bool                  // locks last too long
	opened    bool                  // a set is open as soon as it is bootstrapped
	unseen    bool                  // reading the slots does not show their owners
	counted   bool                  // a node grants any n leases of a resource with n slots
	front     func(service) service // wraps the service
	uncopied  bool                  // locks that move are not written on their new set
	reopened  bool                  // a set that is bootstrapped during a change has the present map
	undecided bool                  // an operator takes a next map for a moving map
	timeless  bool                  // an operator ignores generations
	unfloored bool                  // a change that is taken back has no floor
	trusting  bool                  // clients count the whole TTL, from the response
	mute      bool                  // nodes wake no server
	outcast   bool                  // servers refuse a node that missed the last map
	clumsy    bool                  // nodes forget a part of a large batch
	halves    bool                  // a lease of several keeps its other parts after one has ended
	sealsOld  bool                  // a server seals with the secret that its last look showed
	quick     bool                  // caught within a few hundred acquisitions: in TestMutants
	soak      bool                  // needs more acquisitions: in TestSoakMutants
}

func (m Mutant) String() string { return m.Name }

// Mutants lists the rules, switched off one by one. Each runs in plans in which the situation that its rule
// protects against is frequent.
var Mutants = []Mutant{
	{Rule: "1", Name: "unequal grants are not confirmed", wrap: func(n *simNode) rules { return unconfirmed{n.model} }, quick: true},
	hunted(replica.ConfirmsForAnyOwner, Mutant{plan: messy}),
	hunted(replica.ConfirmsAnyGrant, Mutant{plan: crossed}),
	hunted(replica.ConfirmsFoundLocks, Mutant{plan: abrupt, soak: true, nodes: 5}),
	hunted(replica.ExtendsAnyGrant, Mutant{plan: revenants, quick: true}),
	hunted(replica.ReleasesAnyGrant, Mutant{plan: reusing, quick: true}),
	hunted(replica.RetractsAnyAttempt, Mutant{plan: reusing, quick: true}),
	{Rule: "3", Name: "a retraction takes what its attempt's lease counts on, and an extend does not note that", weak: replica.RetractsAnyGrant | replica.CountsUnnoted, plan: sparing, soak: true},
	hunted(replica.CountsUnnoted, Mutant{plan: keeping}),
	hunted(replica.ForgetsHighWater, Mutant{quick: true}),
	hunted(replica.RevivesAnyLock, Mutant{quick: true}),
	hunted(replica.ShortensLocks, Mutant{plan: shortening}),
	hunted(replica.ReleasesOnlyLocks, Mutant{plan: breaking, quick: true}),
	hunted(replica.PassesOnlyLocks, Mutant{plan: breaking, quick: true}),
	hunted(replica.PassesNoOthers, Mutant{plan: strayVotes}),
	hunted(replica.RefusesForNow, Mutant{plan: refusing, quick: true}),
	hunted(replica.OpensForAnyIncarnation, Mutant{plan: rolling(Rollback), quick: true}),
	{Rule: "7", Name: "R-1 nodes are read", wrap: func(n *simNode) rules { return doubled{n.model, n} }, plan: forgetful(Lose, nil)},
	hunted(replica.VotesInAnyEpoch, Mutant{plan: crossing, soak: true}),
	hunted(replica.ReleasesInAnyEpoch, Mutant{plan: missing, soak: true}),
	{Rule: "8", Name: "there are no epochs", weak: replica.VotesInAnyEpoch | replica.InstallsNoEpoch, plan: crossing, soak: true},
	hunted(replica.SharesEpochs, Mutant{shares: true, plan: crossing, soak: true}),
	hunted(replica.AdmitsAnyIncarnation, Mutant{plan: again}),
	hunted(replica.KeepsOnStaging, Mutant{plan: revived, quick: true}),
	{Rule: "12", Name: "nodes that do not answer count as lost", force: true, plan: unreachable, quick: true},
	hunted(replica.ForgetsFloor, Mutant{plan: disasters, quick: true}),
	hunted(replica.StagesAdmitted, Mutant{plan: duels, quick: true}),
	hunted(replica.ForgetsStaging, Mutant{plan: relapse}),
	hunted(replica.GrantsTooLong, Mutant{longer: true, plan: rolling(Lose)}),
	hunted(replica.AdmitsAnyQuarantine, Mutant{plan: flushed, quick: true}),
	{Rule: "16", Name: "lost votes are not retracted", careless: true, plan: tidy, soak: true},
	{Rule: "17", Name: "a lease is thought valid for its TTL, from the answer", trusting: true, plan: expiring, quick: true},
	{Rule: "16", Name: "what nobody waits for any more is granted", front: func(s service) service { return deafTo{s} }, plan: impatient, quick: true},
	{Rule: "21", Name: "counters are read before the epoch is installed", wrap: func(n *simNode) rules { return &hasty{Model: n.model, n: n} }, plan: forgetful(Lose, nil), soak: true},
	hunted(replica.SkipsMissing, Mutant{plan: forgetful(Lose, dropped), quick: true}),
	{Rule: "21", Name: "the smallest counter is carried", wrap: func(n *simNode) rules { return modest{n.model, n} }, plan: forgetful(Lose, nil)},
	{Rule: "21", Name: "a lock is carried with the smallest grant", wrap: func(n *simNode) rules { return low{n.model, n} }, plan: lowCarried},
	hunted(replica.LoadsAdmitted, Mutant{plan: reloading, quick: true}),
	{Rule: "21", Name: "a lock is carried for longer than its TTL", wrap: func(n *simNode) rules { return boundless{n.model} }, lasting: true, plan: setBack, quick: true},
	{Rule: "22", Name: "no server watches the clocks", unwatched: true, plan: jumping, quick: true},
	{Rule: "22", Name: "a node whose clock jumped is not expelled", unheeded: true, plan: jumping, quick: true},
	{Rule: "22", Name: "a node is suspected without witnesses", rashly: true, plan: sleeping, quick: true},
	{Rule: "22", Name: "a node is expelled where the others are no quorum", rashly: true, plan: alone, quick: true},
	hunted(replica.TakesAnyToken, Mutant{plan: forged, quick: true}),
	{Rule: "25", Name: "the parts are taken in the caller's order", front: func(s service) service { return byHand{s} }, plan: rings, soak: true},
	{Rule: "25", Name: "parts are not extended while others are waited for", idle: true, plan: gathering, quick: true},
	{Rule: "25", Name: "what failed releases no part", keeps: true, plan: partly, quick: true},
	{Rule: "25", Name: "what failed under a key ends another attempt's parts", weak: replica.RetractsAnyAttempt, plan: severalAgain, soak: true},
	{Rule: "25", Name: "what is left of a lease that has lost a part stays", halves: true, plan: torn, quick: true},
	{Rule: "24", Name: "a lease is sealed by the secret of the last look", sealsOld: true, plan: reborn, quick: true},
	{Rule: "26", Name: "a set is opened before the others have shown the list", opened: true, plan: unlike, quick: true},
	{Rule: "26", Name: "a node set that is down stops the others", front: func(s service) service { return allOrNothing{s} }, plan: apart, soak: true},
	hunted(replica.KeepsOwner, Mutant{plan: holding, quick: true}),
	hunted(replica.BreaksAnyGrant, Mutant{plan: breaking, quick: true}),
	{Rule: "28", Name: "a break deletes locks before a quorum counts past its token", blunt: true, plan: ahead, soak: true},
	{Rule: "29", Name: "a node counts the leases of a resource with slots", counted: true, wrap: func(n *simNode) rules { return counting{n.model, n} }, plan: crowd, quick: true},
	hunted(replica.IgnoresScope, Mutant{plan: twins, quick: true}),
	{Rule: "29", Name: "an owner may have several slots, and a retry takes any", weak: replica.IgnoresScope, unseen: true, plan: twins, quick: true},
	hunted(replica.VotesInAnyMap, Mutant{plan: growing, quick: true}),
	{Rule: "30", Name: "votes by the present map count while resources move", wrap: func(n *simNode) rules { return uncounted{n.model} }, plan: growing},
	hunted(replica.ReleasesInAnyMap, Mutant{plan: departing}),
	{Rule: "30", Name: "what is locked is not copied", uncopied: true, plan: growing, quick: true},
	{Rule: "30", Name: "in doubt the resource is free", wrap: func(n *simNode) rules { return certain{n.model} }, plan: unread},
	hunted(replica.IgnoresMapFloor, Mutant{plan: growing, quick: true}),
	{Rule: "30", Name: "a set that is bootstrapped in a change has the present map", reopened: true, plan: losing},
	{Rule: "30", Name: "a node that missed the last map is refused for good", outcast: true, plan: unread, quick: true},
	{Rule: "30", Name: "a next map that is found decides nothing", undecided: true, plan: growing, quick: true},
	{Rule: "30", Name: "a change begins from any generation", timeless: true, plan: tired, quick: true},
	{Rule: "30", Name: "a change that is taken back has no floor", unfloored: true, plan: forsaken},
	hunted(replica.KeepsTickets, Mutant{plan: impatient, soak: true}),
	hunted(replica.QueuesOwners, Mutant{plan: impatient, quick: true}),
	{Rule: "queue", Name: "nobody hears that it is their turn", mute: true, plan: impatient, quick: true},
	{Rule: "29", Name: "a request waits for the first slot alone", front: func(s service) service { return firstSlot{s} }, plan: slotted, quick: true},
}

// hunted is the mutant of one weakness, with the rule and name of its registration.
func hunted(w replica.Weakness, m Mutant) Mutant {
	r := w.Registration()
	m.Rule, m.Name, m.weak = r.Rule, r.Name, w
	return m
}

// Catches reports whether the mutant explains the violation. A violation that is not about safety (a request
// is not granted in time, or a lock stays) counts only for mutants of liveness.
func (m Mutant) Catches(v *Violation) bool {
	if v == nil {
		return false
	}
	return v.Safety() || m.liveness() && v.Rule != "bounds" && v.Rule != "errors"
}

// liveness reports that the mutant makes a lock stay, or keeps requests from being granted.
func (m Mutant) liveness() bool {
	return m.weak&(replica.KeepsTickets|replica.ConfirmsFoundLocks) != 0 || m.mute || m.outcast || m.careless || m.keeps || m.rashly || m.lasting || m.timeless || m.halves || m.sealsOld || m.weak&replica.QueuesOwners != 0 || m.front != nil
}

// rash expels the nodes after this many looks, without regard to the others.
func (m Mutant) rash(w *world, jumped ...*simNode) {
	if !m.rashly {
		return
	}
	const looks = 4
	if len(jumped) == 0 { // the server's own clock jumped: it sees all clocks jump
		jumped = w.nodes
	}
	for _, n := range jumped {
		w.after(looks*w.plan.Watch, func() {
			if seen, err := n.model.Observe(context.Background()); err == nil {
				_ = n.model.Expel(context.Background(), seen.Incarnation, seen.Epoch, "rash")
			}
		})
	}
}

// In returns the plan with the rule switched off. Its clients are slower, so that more goes wrong between two
// acquisitions.
func (m Mutant) In(p Plan) Plan {
	p.Mutant, p.Pause = m, 30*time.Millisecond
	if m.plan != nil {
		m.plan(&p)
	}
	return p
}

// control is the same plan with the rule in place.
func (m Mutant) control(p Plan) Plan {
	p = m.In(p)
	p.Mutant = Mutant{}
	return p
}

// change lets a mutant change a message. A mutant may also reply in place of the node.
func (m Mutant) change(msg *message) (reply node.Reply, answered bool) {
	reply.Outcome = node.Granted
	switch {
	case m.unheeded && msg.kind == kindOf("expel"), m.uncopied && msg.kind == kindOf("receive"):
		return reply, true
	case msg.op == nil:
	case m.keeps && msg.op.Kind == node.OpRelease, m.idle && msg.op.Kind == node.OpExtend:
		return reply, msg.w.check.ledger(msg.op.Resource).tokens[msg.op.Token] == "" // no client has a lease with this token
	case m.halves && msg.op.Kind == node.OpRelease:
		return reply, msg.w.check.ledger(msg.op.Resource).unended(msg.op.Token)
	case m.unseen && msg.op.Kind == node.OpRead:
		_, slot := lockcore.SlotOf(msg.op.Resource)
		return node.Reply{Outcome: node.NotHeld}, slot > 0
	case m.longer && msg.op.Kind == node.OpAcquire:
		const times = 10
		longer := *msg.op
		longer.TTL *= times
		msg.op = &longer
	case m.careless && msg.op.Kind == node.OpRetract:
		return reply, true
	case m.blunt && msg.op.Kind == node.OpAcquire:
		msg.w.askers[msg.op.Owner] = true
	case m.blunt && msg.op.Kind == node.OpRelease: // a release for an owner that requested no lock: a break sends it to raise the counters
		return node.Reply{Outcome: node.NotHeld}, !msg.w.askers[msg.op.Owner]
	}
	return reply, false
}

// deafTo executes requests even after their callers have hung up.
type deafTo struct{ service }

func (d deafTo) Acquire(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
	lease, err := d.service.Acquire(context.WithoutCancel(ctx), req)
	return lease, errors.Join(err, ctx.Err())
}

// unconfirmed accepts every confirm, and does nothing.
type unconfirmed struct{ *nodetest.Model }

func (u unconfirmed) Apply(op node.Op) node.Reply {
	if op.Kind == node.OpConfirm {
		return node.Reply{Outcome: node.Granted, Grant: op.Token}
	}
	return u.Model.Apply(op)
}

// doubled replies with the second node's state in place of the first's. So a server that reads both has read
// one node fewer than it believes.
type doubled struct {
	*nodetest.Model

	n *simNode
}

func (d doubled) source() *nodetest.Model {
	if other := d.n.w.nodes[1]; d.n.id == 0 && other.votes() {
		return other.model
	}
	return d.Model
}

func (d doubled) InstallEpoch(ctx context.Context, epoch node.Epoch) (node.Marks, error) {
	marks, err := d.Model.InstallEpoch(ctx, epoch)
	if err != nil {
		return marks, err
	}
	seen, err := d.source().Observe(ctx)
	return seen.Marks, err
}

func (d doubled) Survey(ctx context.Context, epoch node.Epoch, cursor string) ([]node.CarriedLock, string, error) {
	return d.source().Survey(ctx, epoch, cursor)
}

func (d doubled) Counters(ctx context.Context, epoch node.Epoch, resources []string) ([]fencing.Token, error) {
	return d.source().Counters(ctx, epoch, resources)
}

// common changes an epoch on arrival. A mutant drops the bits by which rejoins after one bootstrap would
// exceed the bootstrap's epoch.
func (p *port) common(e node.Epoch) node.Epoch {
	if p.w.plan.Mutant.shares {
		return e &^ (1<<16 - 1)
	}
	return e
}

func (p *port) admission(a node.Admission) node.Admission {
	a.Epoch, a.Bootstrapped = p.common(a.Epoch), p.common(a.Bootstrapped)
	if p.w.plan.Mutant.reopened && strings.HasPrefix(a.Map.Name, "closed-") {
		a.Map.Name = p.w.mapNames[max(0, p.server.change-1)]
	}
	if p.w.plan.Mutant.opened {
		a.Map.Name = strings.TrimPrefix(a.Map.Name, "new-")
	}
	return a
}

// mapFor returns a node's map as the caller sees it.
func (p *port) mapFor(ctx context.Context, m node.Map) node.Map {
	at := p.server.change
	if p.w.plan.Mutant.undecided && ctx.Value(operator{}) != nil && m.Name == p.w.mapNames[at] {
		m.Name = p.w.mapNames[at-1] + "-" + m.Name + "-"
	}
	if p.w.plan.Mutant.timeless && ctx.Value(operator{}) != nil {
		m.Generation = 0
	}
	return m
}

// floorFor returns the floor with which a map is installed.
func (p *port) floorFor(name string, floor fencing.Token) fencing.Token {
	at := p.server.change
	if p.w.plan.Mutant.unfloored && at > 0 && name == p.w.mapNames[at-1] {
		return 0
	}
	return floor
}

// hasty replies with counters from an earlier look, three to six TTLs ago: before the rejoining node was lost.
type hasty struct {
	*nodetest.Model

	n      *simNode
	shadow *nodetest.Model   // an earlier state of the node
	seen   memstore.Snapshot // the shadow's next state
	seenAt time.Duration
}

func (h *hasty) Observe(ctx context.Context) (node.Observation, error) {
	age := 3 * h.n.w.plan.MaxTTL
	if h.shadow == nil {
		h.shadow = nodetest.NewModel(nodetest.ModelOptions{
			Now: h.n.clock, CounterTTL: h.n.w.plan.CounterTTL, Weak: replica.OpensForAnyIncarnation | replica.ReadsInAnyEpoch,
		})
	}
	seen, err := h.Model.Observe(ctx)
	if seen.Admitted && h.n.w.now() > h.seenAt+age {
		h.shadow.Join(seen.Cluster)
		h.shadow.Restore(h.seen)
		h.seen, h.seenAt = h.Snapshot(), h.n.w.now()
	}
	return seen, err
}

func (h *hasty) Counters(ctx context.Context, epoch node.Epoch, resources []string) ([]fencing.Token, error) {
	counters, err := h.Model.Counters(ctx, epoch, resources)
	if err != nil || h.shadow == nil {
		return counters, err
	}
	if old, err := h.shadow.Counters(ctx, epoch, resources); err == nil {
		return old, nil
	}
	return counters, nil
}

// boundless reports every lock's remaining time as its TTL.
type boundless struct{ *nodetest.Model }

func (b boundless) Survey(ctx context.Context, epoch node.Epoch, cursor string) ([]node.CarriedLock, string, error) {
	locks, next, err := b.Model.Survey(ctx, epoch, cursor)
	for i := range locks {
		locks[i].TTL = max(locks[i].TTL, locks[i].Remaining)
	}
	return locks, next, err
}

// low installs locks with the smallest grant that their lease has anywhere.
type low struct {
	*nodetest.Model

	n *simNode
}

func (l low) Load(ctx context.Context, a node.Admission, locks []node.CarriedLock) error {
	locks = slices.Clone(locks)
	for i := range locks {
		for _, other := range l.n.w.nodes {
			r := other.model.Apply(node.Op{Kind: node.OpRead, Resource: locks[i].Resource})
			if r.Outcome == node.Granted && r.Owner == locks[i].Owner {
				locks[i].Grant = min(locks[i].Grant, r.Grant)
			}
		}
	}
	return l.Model.Load(ctx, a, locks)
}

// modest replies with the smallest counter of all nodes.
type modest struct {
	*nodetest.Model

	n *simNode
}

func (m modest) Counters(ctx context.Context, epoch node.Epoch, resources []string) ([]fencing.Token, error) {
	least, err := m.Model.Counters(ctx, epoch, resources)
	if err != nil {
		return nil, err
	}
	for _, other := range m.n.w.nodes {
		counters, err := other.model.Counters(ctx, epoch, resources)
		if err != nil {
			continue
		}
		for i := range least {
			least[i] = min(least[i], counters[i])
		}
	}
	return least, nil
}

// byHand takes several resources as a client without bundles would: one lease after the other, in the order of
// the request.
type byHand struct{ service }

const and = " "

func (h byHand) Acquire(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
	if req.Resources == nil {
		return h.service.Acquire(ctx, req)
	}
	until := time.Now().Add(req.Wait)
	keeping, stop := context.WithCancel(ctx)
	var keepers sync.WaitGroup
	defer keepers.Wait()
	defer stop()
	var ids []string
	for _, resource := range req.Resources {
		one := req
		one.Resources, one.Resource = nil, resource
		if one.IdempotencyKey != "" {
			one.IdempotencyKey += resource
		}
		if req.Wait > 0 {
			one.Wait = max(time.Millisecond, time.Until(until))
		}
		lease, err := h.service.Acquire(ctx, one)
		if err != nil {
			_ = h.Release(context.WithoutCancel(ctx), strings.Join(ids, and))
			return lockcore.Lease{}, err
		}
		ids = append(ids, lease.ID)
		keepers.Go(func() { keep(keeping, h.service, lease.ID, req.TTL) })
	}
	lease := strings.Join(ids, and)
	all, err := h.Extend(ctx, lease, req.TTL)
	all.ID = lease
	return all, err
}

// keep extends a lease until ctx ends.
func keep(ctx context.Context, s service, lease string, ttl time.Duration) {
	const often = 3
	ticker := time.NewTicker(ttl / often)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			_, _ = s.Extend(ctx, lease, ttl)
		}
	}
}

func (h byHand) Release(ctx context.Context, lease string) error {
	_, err := each(lease, func(id string) (lockcore.Lease, error) { return lockcore.Lease{}, h.service.Release(ctx, id) })
	return err
}

func (h byHand) Extend(ctx context.Context, lease string, ttl time.Duration) (lockcore.Lease, error) {
	return each(lease, func(id string) (lockcore.Lease, error) { return h.service.Extend(ctx, id, ttl) })
}

func (h byHand) Lease(ctx context.Context, lease string) (lockcore.Lease, error) {
	return each(lease, func(id string) (lockcore.Lease, error) { return h.service.Lease(ctx, id) })
}

// each calls do for every lease of several.
func each(leases string, do func(id string) (lockcore.Lease, error)) (all lockcore.Lease, err error) {
	for id := range strings.FieldsSeq(leases) {
		one, failed := do(id)
		err = errors.Join(err, failed)
		all.Parts, all.Validity = append(all.Parts, partsOf(&one)...), one.Validity
	}
	slices.SortFunc(all.Parts, func(a, b lockcore.LeasePart) int { return strings.Compare(a.Resource, b.Resource) })
	return all, err
}

// allOrNothing grants only while all node sets have a quorum.
type allOrNothing struct{ service }

func (a allOrNothing) Acquire(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
	if !a.Status().Ready {
		return lockcore.Lease{}, &lockcore.QuorumError{Resource: req.Resource}
	}
	return a.service.Acquire(ctx, req)
}

// missedLastMap reports whether the node has an earlier map than another node of its set had at this server's
// last look.
func (s *server) missedLastMap(set int, seen node.Observation) bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if !seen.Admitted {
		return false
	}
	s.lastMaps[set] = max(s.lastMaps[set], seen.Marks.Map.Epoch)
	return seen.Marks.Map.Epoch < s.lastMaps[set]
}
