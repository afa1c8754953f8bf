package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/internal/vacancy"
)

// warmUp is how long clients work before and after the faults.
const warmUp = 300 * time.Millisecond

// tickEvery is the time between two ticks of a fault.
const tickEvery = 150 * time.Millisecond

// Result is the result of a round.
type Result struct {
	Faults       []string
	Took         time.Duration
	Acquisitions int // acquisitions that got a lease
	Writes       int // acknowledged
	Stale        int // claims and writes refused as stale
	Unanswered   int // requests that may have taken effect
	Away         time.Duration
	Gap          string        // the longest time without service, and when it began, counted from the beginning of the faults
	Recovered    time.Duration // from the faults' end to the first lease
	Vacant       vacancy.Sums  // how long resources were idle or orphaned while a client waited
	Unexcused    []string      // the longer vacancies that nothing excuses
	Violations   []Violation
}

// round is one run under way.
type round struct {
	stand   *Stand
	number  int
	faults  []Fault
	taken   [][]*node
	random  *rand.Rand
	history *history
	probe   *probe
	watch   *vacancy.Watch
	result  Result
	began   time.Duration // when the faults began
	ended   time.Duration // when they were over
}

// Run runs one round with some faults. It fails the test only if the stand itself breaks; broken promises are
// in the result.
func (s *Stand) Run(faults ...Fault) Result {
	s.t.Helper()
	s.rounds++
	r := &round{
		stand: s, number: s.rounds, faults: faults, history: &history{},
		random: rand.New(rand.NewPCG(s.config.Seed, uint64(s.rounds))), //nolint:gosec // a schedule that repeats is the point
	}
	r.take()
	began := s.now()
	r.prepare()
	r.open()
	r.work()
	final := r.recover()
	r.judge(final)
	r.result.Took = s.now() - began
	if len(r.result.Violations) > 0 || s.config.Keep {
		r.save()
	}
	return r.result
}

// take assigns the nodes to the faults.
func (r *round) take() {
	for _, f := range r.faults {
		r.result.Faults = append(r.result.Faults, f.Name)
	}
	for i, dealt := range deal(r.random.Perm(nodes), r.faults) {
		var taken []*node
		for _, n := range dealt {
			taken = append(taken, r.stand.nodes[n])
		}
		if len(taken) < r.faults[i].Nodes {
			r.stand.t.Fatalf("chaos: not enough nodes for %q beside the others of %v", r.faults[i].Name, r.result.Faults)
		}
		r.taken = append(r.taken, taken)
	}
}

// deal gives each fault nodes of its own. Faults that need certain nodes come first.
func deal(free []int, faults []Fault) [][]int {
	all, order := len(free), make([]int, len(faults))
	for i := range order {
		order[i] = i
	}
	choice := func(i int) int {
		if faults[i].On == nil {
			return all
		}
		return len(faults[i].On)
	}
	slices.SortStableFunc(order, func(a, b int) int { return choice(a) - choice(b) })
	dealt := make([][]int, len(faults))
	for _, i := range order {
		for _, n := range slices.Clone(free) {
			if len(dealt[i]) < faults[i].Nodes && (faults[i].On == nil || slices.Contains(faults[i].On, n)) {
				dealt[i] = append(dealt[i], n)
				free = slices.DeleteFunc(free, func(m int) bool { return m == n })
			}
		}
	}
	return dealt
}

func (r *round) prepare() {
	for i, f := range r.faults {
		if f.prepare != nil {
			f.prepare(r.stand, r.taken[i])
		}
	}
	testenv.Eventually(r.stand.t, time.Minute, r.stand.settled)
}

// open empties every record under a new token, with which the round begins.
func (r *round) open() {
	for i := range r.stand.config.Resources {
		resource := r.stand.resource(i)
		testenv.Eventually(r.stand.t, 30*time.Second, func() error {
			start, err := r.reset(resource)
			if err == nil {
				r.stand.marks[resource] = start
			}
			return err
		})
	}
	r.history = &history{}
}

// reset writes an empty record, and checks that its token is a larger one.
func (r *round) reset(resource string) (mark, error) {
	s, ctx := r.stand, r.stand.t.Context()
	o := &op{Client: -1, Server: r.random.IntN(len(r.stand.servers))}
	s.acquire(ctx, r.history, o, &wish{resources: []string{resource}, ttl: s.config.MaxTTL}, s.config.MaxTTL)
	if !o.ok() {
		return mark{}, fmt.Errorf("lock %s: status %d", resource, o.Status)
	}
	if last := s.marks[resource].Token; o.Token <= last {
		r.violationf("tokens", resource, "token %d in a new round, after %d in an earlier one", o.Token, last)
	}
	written, released := o.again(), o.again()
	s.put(ctx, r.history, written, "")
	s.release(ctx, r.history, released)
	if !written.ok() || !released.ok() {
		return mark{}, fmt.Errorf("empty the record of %s: status %d, release: %d", resource, written.Status, released.Status)
	}
	return mark{Token: o.Token}, nil
}

func (r *round) violationf(kind, resource, format string, args ...any) {
	r.result.Violations = append(r.result.Violations, Violation{Kind: kind, Resource: resource, What: fmt.Sprintf(format, args...)})
}

// work lets the clients work while the faults begin, last and end.
func (r *round) work() {
	s := r.stand
	ctx, stop := context.WithCancel(s.t.Context())
	defer stop()
	r.probe = s.startProbe(ctx)
	r.probe.running.Go(func() { s.ruler.run(ctx) })
	r.watch = s.startWatch(ctx)
	clients := r.startClients(ctx)
	wait(warmUp)
	r.began = s.now()
	r.breakThings()
	r.ended = s.now()
	r.awaitService()
	testenv.Eventually(s.t, 2*time.Minute, s.settled)
	wait(warmUp)
	stop()
	clients.Wait()
	r.probe.running.Wait()
	r.serviceTimes()
}

func (r *round) startClients(ctx context.Context) *sync.WaitGroup {
	var running sync.WaitGroup
	for id := range r.stand.config.Clients {
		c := &client{
			stand: r.stand, history: r.history, gate: &r.stand.gate, id: id, round: r.number,
			random: rand.New(rand.NewPCG(r.stand.config.Seed, uint64(r.number)<<20|uint64(id))), //nolint:gosec // repeats on purpose
		}
		running.Go(func() { c.run(ctx) })
	}
	return &running
}

// breakThings begins the faults one after the other, lets them last, and ends
// them in another order.
func (r *round) breakThings() {
	courses := make([]course, 0, len(r.faults))
	hold := r.stand.config.Hold
	for i, f := range r.faults {
		hold = max(hold, f.lasts)
		courses = append(courses, f.begin(r.stand, r.random, r.taken[i]))
	}
	r.sabotage()
	for end := time.Now().Add(hold); time.Now().Before(end); wait(tickEvery) {
		for _, c := range courses {
			if c.tick != nil {
				c.tick()
			}
		}
	}
	for _, i := range r.random.Perm(len(courses)) {
		courses[i].end()
	}
}

// awaitService waits for the first lease after the faults: for the promised time, extended by the time in
// which the machine was too busy.
func (r *round) awaitService() {
	limit := r.stand.config.recoverWithin()
	served := func() error {
		if _, found := r.probe.since(r.ended); !found {
			return errors.New("no client was served")
		}
		return nil
	}
	err := eventually(limit, served)
	for err != nil && r.stand.now()-r.stand.ruler.lastLate() < limit {
		err = eventually(time.Second, served)
	}
	if err != nil {
		r.violationf("service", "all", "no lease within %s after the faults ended", limit)
	}
}

func (r *round) serviceTimes() {
	s := r.stand
	away, longest, counts := r.probe.gaps(s.now(), s.ruler.lates())
	r.result.Away = away
	r.result.Gap = r.tell(longest)
	r.result.Recovered, _ = r.probe.since(r.ended)
	major := slices.ContainsFunc(r.faults, func(f Fault) bool { return f.Major })
	if !major && counts.length() > s.config.AtOnce {
		r.violationf("service", "all", "no lease from %s, although a quorum was there throughout, and the machine had time", r.tell(counts))
	}
}

func (r *round) tell(g gap) string {
	return fmt.Sprintf("%s to %s of %s", tenths(g.from-r.began), tenths(g.to-r.began), tenths(r.ended-r.began))
}

// recover locks every resource and reads it. This shows that no lock is stuck, and prevents writes with
// earlier tokens.
func (r *round) recover() (final map[string]string) {
	s := r.stand
	final = map[string]string{}
	for i := range s.config.Resources {
		resource := s.resource(i)
		limit := max(s.config.recoverWithin()-(s.now()-r.ended), s.config.MaxTTL+time.Second)
		err := eventually(limit, func() error {
			value, err := r.last(resource)
			if err == nil {
				final[resource] = value
			}
			return err
		})
		if err != nil {
			r.violationf("stuck", resource, "%v%s", err, s.explain(resource))
		}
	}
	r.leaks()
	return final
}

// explain lists what the nodes know of a resource, for a message.
func (s *Stand) explain(resource string) string {
	var b strings.Builder
	for i, n := range s.nodes {
		ctx := s.t.Context()
		lock, left := n.admin.Get(ctx, "l:"+resource).Val(), n.admin.PTTL(ctx, "l:"+resource).Val()
		line := n.admin.ZRange(ctx, "ql:"+resource, 0, -1).Val()
		alive := n.admin.Keys(ctx, "s:*").Val()
		fmt.Fprintf(&b, "\nnode %d: lock %q for %s, line %q, servers alive %q", i, lock, left, line, alive)
	}
	return b.String()
}

// last acquires, claims, reads and releases.
func (r *round) last(resource string) (value string, err error) {
	s, ctx := r.stand, r.stand.t.Context()
	o := &op{Client: -1, Server: r.random.IntN(len(r.stand.servers))}
	s.acquire(ctx, r.history, o, &wish{resources: []string{resource}, ttl: s.config.MaxTTL}, 0)
	if !o.ok() {
		return "", fmt.Errorf("lock: status %d", o.Status)
	}
	read := o.again()
	value = s.claim(ctx, r.history, read)
	s.release(ctx, r.history, o.again())
	if !read.ok() {
		return "", fmt.Errorf("claim: status %d", read.Status)
	}
	return value, nil
}

// leaks waits until no node has a lock.
func (r *round) leaks() {
	s := r.stand
	err := eventually(s.config.MaxTTL+2*time.Second, func() error {
		left, err := s.locks()
		if err == nil && len(left) > 0 {
			err = errors.New(strings.Join(left, ", "))
		}
		return err
	})
	if err != nil {
		r.violationf("leaked", "all", "%v", err)
	}
}

// judge checks the history.
func (r *round) judge(final map[string]string) {
	jumps := slices.ContainsFunc(r.faults, func(f Fault) bool { return f.Jumps })
	split := slices.ContainsFunc(r.faults, func(f Fault) bool { return f.Split })
	losesLeases := slices.ContainsFunc(r.faults, func(f Fault) bool { return f.Major })
	answers := r.stand.engine != nil && !slices.ContainsFunc(r.faults, func(f Fault) bool { return f.part == partServers || f.part == partClients })
	for resource, ops := range r.history.byResource() {
		r.tally(ops)
		c := &checker{resource: resource, ops: ops}
		start := r.stand.marks[resource]
		if split {
			c.unique(c.of((*op).ok, opAcquire))
		} else {
			c.tokens(start.Token)
		}
		if !jumps && !split {
			c.exclusion()
		}
		if answers {
			c.waits(r.stand.ruler.lates())
		}
		c.refused()
		if !jumps && !split && !losesLeases {
			c.lost()
		}
		if value, known := final[resource]; known {
			c.writes(value)
			c.order(start, value)
		}
		r.result.Violations = append(r.result.Violations, c.found...)
		r.stand.marks[resource] = mark{Token: largestToken(ops, start.Token)}
	}
	r.vacancies()
}

// vacancies adds up how long resources were vacant. It allows a second per fault.
func (r *round) vacancies() {
	r.result.Vacant = vacancy.Sums{}
	looks := r.watch.Looks()
	var sum time.Duration
	for _, resource := range r.stand.contested() {
		v := newVacant(resource, r.history.about(resource))
		v.away, v.late, v.trouble = r.stand.away, r.stand.ruler.lates(), r.trouble
		runs := v.judge(looks[resource])
		r.result.Vacant.Count(runs)
		for _, run := range runs {
			if !run.Excused && run.Counted >= vacancy.Worth {
				sum += run.Counted
				r.result.Unexcused = append(r.result.Unexcused, fmt.Sprintf("%s %s (%s, token %d), %s to %s of %s", resource, run.Cause, run.Label, run.Token,
					tenths(run.From-r.began), tenths(run.To-r.began), tenths(r.ended-r.began)))
			}
		}
	}
	if bound := time.Second * time.Duration(len(r.faults)); sum > bound {
		r.violationf("vacant", "all", "%s without an excuse while somebody waited, want %s at most: %s", tenths(sum), bound, strings.Join(r.result.Unexcused, "; "))
	}
}

// trouble reports that a fault took the service away, or separated a server from its waiters, at that time or
// shortly before. The tickets of such a server keep their places for 3 s.
func (r *round) trouble(from, to time.Duration) bool {
	const places, asks = 3 * time.Second, time.Second
	over := r.ended + r.result.Recovered + places + asks
	return r.began <= to && from <= over && slices.ContainsFunc(r.faults, func(f Fault) bool { return f.Major || f.part == partServers || f.cutsServer })
}

func largestToken(ops []*op, largest int64) int64 {
	for _, o := range ops {
		if o.ok() {
			largest = max(largest, o.Token)
		}
	}
	return largest
}

func (r *round) tally(ops []*op) {
	for _, o := range ops {
		switch {
		case o.Kind == opAcquire && o.ok():
			r.result.Acquisitions++
		case o.Kind == opPut && o.ok():
			r.result.Writes++
		case o.stale():
			r.result.Stale++
		case o.open():
			r.result.Unanswered++
		}
	}
}

// save keeps the history of the round.
func (r *round) save() {
	name := fmt.Sprintf("chaos-seed-%d-round-%d.jsonl", r.stand.config.Seed, r.number)
	path, err := r.history.save(r.stand.config.Dir, name)
	r.stand.t.Logf("chaos: history of round %d (%v), seed %d: %s %v", r.number, r.result.Faults, r.stand.config.Seed, path, err)
}

// sabotage breaks what a test wants broken.
func (r *round) sabotage() {
	s := r.stand
	if s.config.sabotage.forgetCounts {
		for _, n := range s.nodes {
			s.command(n, "eval", forget, "0")
		}
	}
	if s.config.sabotage.leaveLock {
		s.command(s.nodes[0], "set", "l:chaos/left", "1")
	}
	for _, n := range s.nodes {
		if s.config.sabotage.deadPlace {
			s.command(n, "set", "s:nobody", "", "px", "5000")
			for _, resource := range s.contested() {
				s.command(n, "zadd", "ql:"+resource, "1", "place nobody x")
			}
		}
		if s.config.sabotage.loseLocks {
			s.command(n, "eval", loseLocks, "0")
		}
	}
}

// forget makes a node forget its locks, its counters, and how far it had counted.
const forget = `
for _, key in ipairs(redis.call('KEYS', 'l:*')) do redis.call('DEL', key) end
for _, key in ipairs(redis.call('KEYS', 'cl:*')) do redis.call('DEL', key) end
redis.call('HSET', 'fencelock', 'high_water', '0')
return 1`

// loseLocks makes a node lose its locks, and takes their counters past them.
const loseLocks = `
for _, key in ipairs(redis.call('KEYS', 'l:*')) do redis.call('DEL', key) end
for _, key in ipairs(redis.call('KEYS', 'cl:*')) do redis.call('DEL', key) end
return 1`

func (s *Stand) command(n *node, args ...any) {
	s.t.Helper()
	if err := n.admin.Do(s.t.Context(), args...).Err(); err != nil {
		s.t.Fatal(err)
	}
}

// wait lets time pass, as the schedule of a round demands.
func wait(d time.Duration) {
	<-time.After(d)
}

// eventually is testenv.Eventually for promises: a broken promise is a finding, and does not end the test.
func eventually(within time.Duration, check func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(within); ; <-tick.C {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
