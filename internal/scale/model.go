package scale

import "math"

// Bottleneck is what bounds pairs a second.
type Bottleneck string

// The bottlenecks.
const (
	ServerCPU  Bottleneck = "server CPU"
	NodeCPU    Bottleneck = "node CPU"
	SharedCPU  Bottleneck = "the machine's CPU"
	Watch      Bottleneck = "servers' observations" // they take most of the nodes' CPU
	InFlight   Bottleneck = "in-flight limit"
	RoundLimit Bottleneck = "node timeout"
)

// Bottlenecks are those of machines of their own, in the order in which growth meets them.
func Bottlenecks() []Bottleneck {
	return []Bottleneck{ServerCPU, NodeCPU, Watch, InFlight, RoundLimit}
}

// Advice says what to do about one.
func (b Bottleneck) Advice() string {
	switch b {
	case ServerCPU:
		return "Add servers."
	case NodeCPU:
		return "Add sets, or use fewer, larger servers. Every set splits a server's batches: 100 servers do half as much on 100 sets as on ten."
	case Watch:
		return "Use fewer servers. Each observes each node four times a second, for 0.12 % of its core: stay below 300; near 800 nothing is left, whatever the number of sets."
	case InFlight:
		return "Add servers or sets. A server has 128 acquires under way to a set, for 1.5 to 2 round trips each."
	case RoundLimit:
		return "Raise FENCELOCK_NODE_TIMEOUT, and TTLs to ten times that."
	default:
		return "Use machines apart."
	}
}

// Prediction is what a deployment does under a load. Times are in seconds.
type Prediction struct {
	Pairs        float64 // a second
	Acquire, P99 float64 // time of an acquire, seen by its client: mean and 99th percentile
	RoundP99     float64 // of the nodes' part
	Batch        float64 // operations of a script call, the mean over nodes
	ServerUse    float64 // of its processors, 0 to 1
	NodeUse      float64 // of the busiest node's core
	InFlightUse  float64 // of the places
	LimitUse     float64 // RoundP99 as a share of the round's time limit
	First        Bottleneck
}

// link is a server's sender to one node at a load.
type link struct {
	batch, burst, cycle float64 // operations; the node's seconds for one batch; seconds
	wait                float64 // of a batch for processors, in the mean
	use                 float64 // of what observations leave of the node's core
	busy                float64 // the share of operations that find a batch under way
}

// answer is when an operation is answered that comes at any moment of a cycle or, step of
// 1, right at its beginning, since those that were answered together come together.
func (k link) answer(step float64) answer {
	return answer{Least: k.cycle - k.wait + step*k.busy*k.cycle, Cycle: (1 - step) * k.cycle, Busy: k.busy, Wait: k.wait}
}

// load is a deployment at so many pairs a second.
type load struct {
	Deployment

	costs  Costs
	pairs  float64
	others float64 // the share of operations that come from other callers: nobody waits for their own
	closed bool    // each caller asks again as soon as it is answered
}

// operations a second of one link.
func (l load) operations() float64 { return 2 * l.pairs / float64(l.Servers*l.Sets) }

// linkTo is the link to node i, where a batch waits for nodeWait at the node and for
// serverWait at the server. It reports false if the link cannot carry the load.
func (l load) linkTo(i int, nodeWait, serverWait float64) (k link, ok bool) {
	trip := l.trip(i)
	if l.Shared > 0 {
		trip = l.costs.LocalTrip.Seconds()
	}
	left := 1.0 // of the node's core; without it work takes longer
	if l.Shared == 0 {
		left -= l.watch(l.costs)
	}
	if left <= 0 {
		return k, false
	}
	each := l.costs.NodeBatch.Op.Seconds() / left
	base := trip + nodeWait + serverWait + l.costs.NodeBatch.Fixed.Seconds()/left + l.costs.ServerBatch.Seconds()
	rate := l.operations() * l.others
	k.batch = batchSize(rate, base, each)
	k.burst = l.costs.NodeBatch.Of(k.batch) / left
	k.cycle = base + each*k.batch
	if k.batch > MaxBatch || rate*each >= 1 {
		return k, false
	}
	k.wait = nodeWait + serverWait
	k.use = float64(l.Servers) * l.operations() / k.batch * k.burst
	k.busy = min(1, rate*k.cycle/k.batch)
	return k, true
}

// batchSize solves b = rate·C + exp(-rate·C) with C = base + each·b; a Poisson number of
// operations arrives during a cycle, and a batch has one at least.
func batchSize(rate, base, each float64) float64 {
	if rate*each >= 1 {
		return math.Inf(1)
	}
	low, high := 1.0, 1+rate*(base+each)/(1-rate*each)
	for range halvings {
		b := (low + high) / 2
		arrive := rate * (base + each*b)
		if arrive+math.Exp(-arrive) > b {
			low = b
		} else {
			high = b
		}
	}
	return high
}

// state is a load with its waits settled.
type state struct {
	load

	links              []link
	server             float64 // wait for a processor; on a shared machine, anybody's
	serverUse, nodeUse float64
	batch              float64
}

// solve settles the waits. It reports false if the load is too much.
func (l load) solve() (state, bool) {
	if l.Shared > 0 {
		return l.solveShared()
	}
	return l.solveApart()
}

// solveApart: every server and every node is a machine of its own.
func (l load) solveApart() (s state, ok bool) {
	const limit = 5 // seconds: longer than any round may take
	wait := settle(limit, func(q float64) float64 {
		at, ok := l.apart(q)
		if !ok {
			return 0
		}
		return waitFor(l.ServerCores, at.serverUse*l.others, at.serverVisit())
	})
	s, ok = l.apart(wait)
	return s, ok && s.serverUse < 1 && s.nodeUse < 1
}

// apart has the nodes' waits settled for a wait at the server.
func (l load) apart(serverWait float64) (state, bool) {
	s := state{load: l, server: serverWait, links: make([]link, l.Nodes)}
	for i := range s.links {
		if i > 0 && l.trip(i) == l.trip(i-1) {
			s.links[i] = s.links[i-1]
			continue
		}
		k, ok := l.settleNode(i, serverWait)
		if !ok {
			return s, false
		}
		s.links[i] = k
	}
	s.sum()
	return s, true
}

// settleNode finds how long a batch waits for its node. Each of the other servers has at
// most one batch there.
func (l load) settleNode(i int, serverWait float64) (link, bool) {
	others := float64(l.Servers-1) / float64(l.Servers)
	bound := float64(l.Servers-1) * l.costs.NodeBatch.Of(MaxBatch) / max(1-l.watch(l.costs), 1e-3)
	wait := settle(bound, func(q float64) float64 {
		k, ok := l.linkTo(i, q, serverWait)
		if !ok {
			return 0
		}
		return min(waitFor(1, k.use*others, k.burst), float64(l.Servers-1)*k.burst)
	})
	k, ok := l.linkTo(i, wait, serverWait)
	return k, ok && k.use < 1
}

// solveShared: all wait for the same processors.
func (l load) solveShared() (s state, ok bool) {
	const limit = 5
	wait := settle(limit, func(q float64) float64 {
		at, ok := l.shared(q)
		if !ok {
			return 0
		}
		return waitFor(l.Shared, at.serverUse*l.others, at.sharedVisit())
	})
	s, ok = l.shared(wait)
	return s, ok && s.serverUse < 1
}

// shared has every batch wait once at its node and once at its server.
func (l load) shared(wait float64) (state, bool) {
	s := state{load: l, server: wait, links: make([]link, l.Nodes)}
	k, ok := l.linkTo(0, wait, wait)
	if !ok {
		return s, false
	}
	for i := range s.links {
		s.links[i] = k
	}
	s.sum()
	cores := float64(l.Shared)
	nodes := float64(l.Sets*l.Nodes) * (k.use + l.watch(l.costs))
	wakes := 2 / k.batch // of clients, for a pair: a batch's answers come together
	clients := l.pairs * (l.costs.ClientPair.Op.Seconds() + wakes*l.costs.ClientPair.Fixed.Seconds())
	s.serverUse = (s.serverUse*cores + nodes + clients) / cores
	return s, true
}

// sum adds up what the links mean for servers and nodes.
func (s *state) sum() {
	watch := s.watch(s.costs)
	batches := 0.0 // a second, of one server to one set
	for _, k := range s.links {
		s.batch += k.batch / float64(len(s.links))
		s.nodeUse = max(s.nodeUse, watch+(1-watch)*k.use)
		batches += s.operations() / k.batch
	}
	each := s.pairs / float64(s.Servers)
	cores := each*s.costs.ServerPair.Seconds() +
		float64(s.Sets)*(batches*s.costs.ServerBatch.Seconds()+float64(s.Nodes)*s.costs.ServerWatch)
	if s.Shared > 0 { // of all servers, and in shares of the machine
		s.serverUse = cores * float64(s.Servers) / float64(s.Shared)
		return
	}
	s.serverUse = cores / float64(s.ServerCores)
}

// watchVisits is how often a second a server looks at each node: four observations with
// a reading of the clock, and a heartbeat.
const watchVisits = 9

// serverVisit is the mean time that a server's processor is taken for: a request, or a batch.
func (s *state) serverVisit() float64 {
	visits := 2*s.pairs/float64(s.Servers) + watchVisits*float64(s.Sets*s.Nodes)
	for _, k := range s.links {
		visits += float64(s.Sets) * s.operations() / k.batch
	}
	return s.serverUse * float64(s.ServerCores) / visits
}

// sharedVisit is the same on a machine with everything: by batch the nodes and the server
// are visited, and by batch of a set the client and the server again.
func (s *state) sharedVisit() float64 {
	links := float64(s.Servers * s.Sets)
	visits := links*s.operations()/s.batch*2*float64(s.Nodes+1) + links*2*watchVisits*float64(s.Nodes)
	return s.serverUse * float64(s.Shared) / visits
}

// around is the time between an answer and the caller's next operation at the link.
func (s *state) around() spread {
	request := s.costs.ServerPair.Seconds() / 2
	cores := float64(max(s.ServerCores, s.Shared))
	// Requests come as batches were answered, so one waits for half of those that come with it.
	crowd := (s.batch - 1) / 2 * s.others
	t := fixed(s.ClientTrip.Seconds() + request).plus(exponential(crowd * request / cores))
	if s.Shared == 0 {
		return t.plus(exponential(s.server))
	}
	own := s.costs.ClientPair
	t = t.plus(fixed(own.Of(0.5))).plus(exponential(crowd * own.Op.Seconds() / 2))
	// All wait in one queue for processors, which is long or short for all of them, so the
	// two waits of a request are one, and those of its batch another, for every node.
	return t.plus(exponential(2 * s.server)).plus(exponential(2 * s.server))
}

// round is the time until a quorum has answered an operation that comes after around.
func (s *state) round(around float64) spread {
	answers := make([]answer, 0, len(s.links))
	for _, k := range s.links[s.Down:] {
		step := 0.0
		if s.closed {
			step = max(0, 1-2*around/k.cycle)
		}
		a := k.answer(step)
		if s.Shared > 0 {
			a.Wait = 0 // see around
		}
		answers = append(answers, a)
	}
	return quorumOf(Quorum(s.Nodes), answers)
}

// predict is the load's prediction, and reports whether it can be.
func (l load) predict() (p Prediction, ok bool) {
	s, ok := l.solve()
	if !ok {
		return p, false
	}
	around := s.around()
	round := s.round(around.Mean)
	total := around.plus(round)
	p = Prediction{
		Pairs: l.pairs, Acquire: total.Mean, P99: total.p99(), RoundP99: round.p99(), Batch: s.batch,
		ServerUse: s.serverUse, NodeUse: s.nodeUse,
		InFlightUse: l.operations() / 2 * round.Mean / MaxInFlight,
	}
	p.LimitUse = p.RoundP99 / l.roundLimit()
	p.First = p.first(l.Shared > 0)
	if p.First == NodeCPU && l.watch(l.costs) > 0.5 {
		p.First = Watch
	}
	return p, p.InFlightUse <= 1
}

// full is the share of a processor from which on waits grow without a bound.
const full = 0.9

// first is what is nearest to its bound.
func (p *Prediction) first(shared bool) Bottleneck {
	cpu := ServerCPU
	if shared {
		cpu = SharedCPU
	}
	first, most := cpu, p.ServerUse
	if p.NodeUse > most {
		first, most = NodeCPU, p.NodeUse
	}
	if most > full { // what else is used up then waits for it
		return first
	}
	for _, other := range []struct {
		what Bottleneck
		use  float64
	}{{InFlight, p.InFlightUse}, {RoundLimit, p.LimitUse}} {
		if other.use > most {
			first, most = other.what, other.use
		}
	}
	return first
}

// At predicts for so many pairs a second, which come whenever they like. It reports false
// if the deployment cannot do them.
func At(d Deployment, c Costs, pairs float64) (Prediction, bool) {
	p, ok := load{Deployment: d, costs: c, pairs: pairs, others: 1}.predict()
	return p, ok && p.LimitUse <= 1
}

// Closed predicts for so many callers that each do one pair after the other.
func Closed(d Deployment, c Costs, callers int) Prediction {
	n := float64(callers)
	at := func(pairs float64) (Prediction, bool) {
		return load{Deployment: d, costs: c, pairs: pairs, others: (n - 1) / n, closed: true}.predict()
	}
	pairs := largest(func(pairs float64) bool {
		p, ok := at(pairs)
		return ok && pairs*2*p.Acquire <= n
	})
	p, _ := at(pairs)
	// What Little's law has more is the wait for a place in flight, which only acquires need.
	place := max(0, n/max(pairs, 1e-9)-2*p.Acquire)
	p.Acquire += place
	p.P99 += place
	return p
}

// Capacity is the most that the deployment does within a round's time limit; no pairs if
// it can do none.
func Capacity(d Deployment, c Costs) Prediction {
	pairs := largest(func(pairs float64) bool {
		_, ok := At(d, c, pairs)
		return ok
	})
	p, ok := At(d, c, pairs)
	switch {
	case ok:
		return p
	case d.watch(c) >= 1:
		return Prediction{First: Watch, NodeUse: d.watch(c)}
	}
	return Prediction{First: RoundLimit}
}

// largest is the largest pairs a second that fit, by bisection: to one in a million.
func largest(fits func(pairs float64) bool) float64 {
	low, high := 0.0, 1e-3
	for ; fits(high) && high < 1e12; high *= 2 {
		low = high
	}
	for range 22 {
		if middle := (low + high) / 2; fits(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}
