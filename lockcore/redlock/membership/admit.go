package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// carryPage is how many resources one call of a rejoin reads or writes.
const carryPage = 500

// found founds the cluster again on the planned nodes (rule 12). It purges and
// closes a quorum of them before it opens any: from then on no other bootstrap
// and no late rejoin can make a quorum, so that of servers which found at the
// same time one alone succeeds, and none purges what another has opened.
//
// All begin with the same node, if they can, so that it decides between them:
// who meets another there stops, and leaves the nodes to the larger epoch. Going
// on would open a few nodes only, and make the others be away and wait again.
func (m *Controller) bootstrap(ctx context.Context, p plan) error {
	log := m.cfg.Logger
	log.Warn("bootstrap the cluster", "nodes", len(p.bootstrap), "new", p.fresh)
	epoch := m.bootstrapEpoch(p.largest)
	a := node.Admission{
		Epoch: epoch, Bootstrapped: epoch, Cluster: m.cluster, Floor: m.bootstrapFloor(ctx),
		MaxTTL: m.cfg.MaxTTL, Secrets: m.newSecrets(epoch), OnlyIfEmpty: p.fresh,
	}
	nodes := m.byName(p.bootstrap)
	admissions := make(map[int]node.Admission, len(nodes))
	staged, failed := m.each(nodes, func(i int) error {
		admissions[i] = pinTo(a, p.pins[i])
		return m.stage(ctx, i, admissions[i])
	}, func([]int) bool { return true })
	if len(staged) < min(quorum.Of(len(m.nodes)), len(nodes)) || errors.Is(failed, node.ErrRaced) {
		return failed
	}
	admitted, failed := m.each(staged, func(i int) error {
		err := m.open(ctx, i, admissions[i])
		if err == nil {
			m.audit(ctx, actBootstrap, i, slog.Bool("new", p.fresh), slog.Bool("force", m.cfg.Force), slog.Int64("epoch", int64(a.Epoch)))
		}
		return err
	}, func(opened []int) bool { return len(opened) == 0 })
	if len(admitted) == 0 {
		return failed
	}
	m.epoch.learn(a.Epoch)
	log.Info("the cluster is bootstrapped", "nodes", len(admitted), "epoch", int64(a.Epoch), "floor", int64(a.Floor))
	return nil
}

// byName puts nodes in an order that all servers share, whatever the order they
// are listed in.
func (m *Controller) byName(nodes []int) []int {
	return slices.SortedFunc(slices.Values(nodes), func(i, j int) int {
		return strings.Compare(m.nodes[i].Name(), m.nodes[j].Name())
	})
}

// bootstrapFloor is above every earlier token: the clock's floor, and every mark
// that survived anywhere.
func (m *Controller) bootstrapFloor(ctx context.Context) fencing.Token {
	now := time.Now()
	floor := node.FloorAt(now)
	m.mu.Lock()
	for i := range m.seen.nodes {
		if high := m.seen.nodes[i].seen.Marks.HighWater; m.seen.nodes[i].fit() && node.Plausible(high, now) {
			floor = max(floor, high)
		}
	}
	m.mu.Unlock()
	if m.cfg.Floor == nil {
		return floor
	}
	reading, cancel := context.WithTimeout(ctx, max(2*time.Second, m.cfg.observeTimeout()))
	defer cancel()
	mark, err := m.cfg.Floor(reading)
	if err != nil {
		m.cfg.Logger.Warn("the guard's highest mark cannot be read: the cluster is bootstrapped on the clock alone", "error", err)
		return floor
	}
	if node.Plausible(mark, now) {
		floor = max(floor, mark)
	}
	return floor
}

// each does f for one node after the other, and says for which it succeeded. Where
// somebody else was faster, it stops if yield says so of what is done.
func (m *Controller) each(nodes []int, f func(int) error, yield func(done []int) bool) (done []int, failed error) {
	for _, i := range nodes {
		err := f(i)
		if err == nil {
			done = append(done, i)
			continue
		}
		failed = errors.Join(failed, fmt.Errorf("node %s: %w", m.nodes[i].Name(), err))
		if errors.Is(err, node.ErrRaced) && yield(done) {
			break
		}
	}
	return done, failed
}

// pinned completes an admission with the state that served its wait: in any
// other the node must not be touched (rule 10).
func pinTo(a node.Admission, to pin) node.Admission {
	a.Incarnation, a.Note = to.incarnation, to.note
	return a
}

// stage purges and closes node i. What it holds staged is worthless to anybody
// else, so a failure later on needs no undoing.
func (m *Controller) stage(ctx context.Context, i int, a node.Admission) error {
	if err := m.call(ctx, func(ctx context.Context) error { return m.nodes[i].Stage(ctx, a) }); err != nil {
		return fmt.Errorf("staging: %w", err)
	}
	return nil
}

// load writes what a rejoining node must know.
func (m *Controller) load(ctx context.Context, i int, a node.Admission, locks []node.CarriedLock) error {
	for page := range slices.Chunk(locks, carryPage) {
		if err := m.call(ctx, func(ctx context.Context) error { return m.nodes[i].Load(ctx, a, page) }); err != nil {
			return fmt.Errorf("loading: %w", err)
		}
	}
	return nil
}

// open ends the admission of node i.
func (m *Controller) open(ctx context.Context, i int, a node.Admission) error {
	if err := m.call(ctx, func(ctx context.Context) error { return m.nodes[i].Admit(ctx, a) }); err != nil {
		return fmt.Errorf("admitting: %w", err)
	}
	return nil
}

func (m *Controller) call(ctx context.Context, f func(context.Context) error) error {
	calling, cancel := context.WithTimeout(ctx, max(time.Second, m.cfg.observeTimeout()))
	defer cancel()
	return f(calling)
}

// rejoin admits the planned nodes again, each by reads of its own.
func (m *Controller) rejoin(ctx context.Context, p plan) error {
	_, failed := m.each(p.rejoin, func(i int) error {
		err := m.rejoinOne(ctx, i, p.pins[i])
		if err == nil {
			m.audit(ctx, actAdmit, i)
		}
		return err
	}, func([]int) bool { return false })
	return failed
}

// rejoinOne is rules 7 to 11, 13 and 21 for one node.
func (m *Controller) rejoinOne(ctx context.Context, i int, pinned pin) error {
	a := pinTo(node.Admission{Cluster: m.cluster}, pinned) // before the reads (rule 10)
	m.mu.Lock()
	p := planFor(&m.seen, m.cfg, time.Now())
	m.mu.Unlock()
	a.Epoch = m.rejoinEpoch(p.largest)
	readers, marks := m.installEpoch(ctx, p.admitted, a.Epoch)
	if err := m.enough(readers, "answered the fenced read"); err != nil {
		return err
	}
	if err := m.waited(i, pinned, marks.MaxTTL); err != nil {
		return err
	}
	m.epoch.learn(a.Epoch)
	locks, err := m.carry(ctx, readers, a.Epoch)
	if err != nil {
		return err
	}
	a.Bootstrapped, a.Floor, a.MaxTTL, a.Secrets = marks.Bootstrapped, marks.HighWater, max(m.cfg.MaxTTL, marks.MaxTTL), marks.Secrets
	if err := m.admit(ctx, i, a, locks); err != nil {
		return err
	}
	m.cfg.Logger.Info("node rejoined", "node", m.nodes[i].Name(), "epoch", int64(a.Epoch), "floor", int64(a.Floor), "locks", len(locks))
	return nil
}

// admit purges, loads and opens node i.
func (m *Controller) admit(ctx context.Context, i int, a node.Admission, locks []node.CarriedLock) error {
	if err := m.stage(ctx, i, a); err != nil {
		return err
	}
	if err := m.load(ctx, i, a, locks); err != nil {
		return err
	}
	return m.open(ctx, i, a)
}

func (m *Controller) enough(readers []int, did string) error {
	if r := quorum.Readers(len(m.nodes)); len(readers) < r {
		return fmt.Errorf("only %d nodes %s, %d needed", len(readers), did, r)
	}
	return nil
}

// waited checks rule 13 once more, against the records that were read.
func (m *Controller) waited(i int, pinned pin, longest time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.seen.nodes[i]
	if longest = max(longest, m.cfg.MaxTTL); s.quarantinedAs != pinned || s.waitLeft(longest+quorum.Drift(longest), time.Now()) > 0 {
		return node.ErrRaced
	}
	return nil
}

// fence reads the marks of the nodes under a new epoch (rules 7 and 8).
func (m *Controller) installEpoch(ctx context.Context, nodes []int, epoch node.Epoch) (readers []int, marks node.Marks) {
	read := make([]*node.Marks, len(m.nodes))
	m.ForEach(ctx, nodes, func(ctx context.Context, i int) {
		switch got, err := m.nodes[i].InstallEpoch(ctx, epoch); {
		case err == nil:
			read[i] = &got
		case errors.Is(err, node.ErrStaleEpoch):
			m.learnStale(err)
		}
	})
	m.installed(read, epoch)
	for i, r := range read {
		if r != nil && (r.HighWater == 0 || node.Plausible(r.HighWater, time.Now())) {
			readers = append(readers, i)
			marks.HighWater = max(marks.HighWater, r.HighWater)
			marks.Bootstrapped = max(marks.Bootstrapped, r.Bootstrapped)
			marks.MaxTTL = max(marks.MaxTTL, min(r.MaxTTL, maxRecordedTTL))
			marks.Secrets = node.MergeSecrets(marks.Secrets, r.Secrets)
		}
	}
	return readers, marks
}

// fenced notes the epoch that the nodes which were read are in now: the next
// rejoin, which may begin before they are looked at again, must exceed it.
func (m *Controller) installed(read []*node.Marks, epoch node.Epoch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, r := range read {
		if r != nil {
			m.seen.nodes[i].seen.Epoch = max(m.seen.nodes[i].seen.Epoch, epoch)
		}
	}
}

func (m *Controller) learnStale(err error) {
	if stale, ok := errors.AsType[*node.StaleEpochError](err); ok {
		m.epoch.learn(stale.Epoch)
	}
}

// ForEach runs f for each of the nodes at the same time, each within a time limit,
// and waits for all.
func (m *Controller) ForEach(ctx context.Context, nodes []int, f func(context.Context, int)) {
	var wg sync.WaitGroup
	for _, i := range nodes {
		wg.Go(func() {
			calling, cancel := context.WithTimeout(ctx, m.cfg.observeTimeout())
			defer cancel()
			f(calling, i)
		})
	}
	wg.Wait()
}

// carry reads what a rejoining node must know of live leases, so that they
// survive a rolling restart (rule 21): the effective counter of every resource
// that is locked on a reader, from at least R of them.
func (m *Controller) carry(ctx context.Context, readers []int, epoch node.Epoch) ([]node.CarriedLock, error) {
	began := time.Now()
	surveys := make([]map[string]node.CarriedLock, len(m.nodes))
	m.eachReader(ctx, readers, func(ctx context.Context, i int) error {
		locks, err := survey(ctx, m.nodes[i], epoch, m.cfg.observeTimeout())
		surveys[i] = locks
		return err
	})
	readers = slices.DeleteFunc(slices.Clone(readers), func(i int) bool { return surveys[i] == nil })
	if err := m.enough(readers, "listed their locks"); err != nil {
		return nil, err
	}
	resources := lockedOn(surveys)
	counters, err := m.readCounters(ctx, readers, epoch, resources)
	if err != nil {
		return nil, err
	}
	quorumReads := quorum.Readers(len(m.nodes))
	carried := make([]node.CarriedLock, len(resources))
	for k, resource := range resources {
		lock, largest := reserve(resource, surveys, quorumReads, time.Since(began))
		if lock.Keyed && counters[k] > largest { // of no use to its lease, whose release would leave it
			lock = node.CarriedLock{Resource: resource}
		}
		setCounter(&lock, counters[k])
		carried[k] = lock
	}
	return carried, nil
}

// setCounter sets the counter, which no lock may be granted below: whoever
// confirms or extends a lease with a token below the counter would be let pass
// by such a lock, though a larger token may have been given meanwhile.
func setCounter(c *node.CarriedLock, counter fencing.Token) {
	c.Counter = counter
	if c.Owner != "" {
		c.Grant = max(c.Grant, counter)
	}
}

// eachReader runs f side by side without a common time limit.
func (m *Controller) eachReader(ctx context.Context, readers []int, f func(context.Context, int) error) {
	var wg sync.WaitGroup
	for _, i := range readers {
		wg.Go(func() {
			if err := f(ctx, i); err != nil && ctx.Err() == nil {
				m.cfg.Logger.Info("a node could not be read for a rejoin", "node", m.nodes[i].Name(), "error", err)
			}
		})
	}
	wg.Wait()
}

// survey lists every lock of one node; nil with an error.
func survey(ctx context.Context, n node.Node, epoch node.Epoch, limit time.Duration) (map[string]node.CarriedLock, error) {
	locks := make(map[string]node.CarriedLock)
	for cursor := ""; ; {
		calling, cancel := context.WithTimeout(ctx, limit)
		page, next, err := n.Survey(calling, epoch, cursor)
		cancel()
		if err != nil {
			return nil, err
		}
		for _, lock := range page {
			locks[lock.Resource] = lock
		}
		if cursor = next; cursor == "" {
			return locks, nil
		}
	}
}

// lockedOn is every resource that any survey shows, sorted.
func lockedOn(surveys []map[string]node.CarriedLock) []string {
	all := make(map[string]bool)
	for _, survey := range surveys {
		for resource := range survey {
			all[resource] = true
		}
	}
	resources := make([]string, 0, len(all))
	for resource := range all {
		resources = append(resources, resource)
	}
	slices.Sort(resources)
	return resources
}

// readCounters gives for each resource the R-th smallest effective counter of
// the readers: some completed quorum's node is among any R, and the largest of
// the best R reads is the smallest number that is sure to be high enough.
func (m *Controller) readCounters(ctx context.Context, readers []int, epoch node.Epoch, resources []string) ([]fencing.Token, error) {
	chosen := make([]fencing.Token, 0, len(resources))
	for page := range slices.Chunk(resources, carryPage) {
		read := make([][]fencing.Token, len(m.nodes))
		m.ForEach(ctx, readers, func(ctx context.Context, i int) {
			if counters, err := m.nodes[i].Counters(ctx, epoch, page); err == nil && len(counters) == len(page) {
				read[i] = counters
			}
		})
		for k := range page {
			values := make([]fencing.Token, 0, quorum.MaxNodes)
			for _, counters := range read {
				if counters != nil {
					values = append(values, counters[k])
				}
			}
			if len(values) < quorum.Readers(len(m.nodes)) {
				return nil, fmt.Errorf("only %d nodes read their counters, %d needed", len(values), quorum.Readers(len(m.nodes)))
			}
			slices.Sort(values)
			chosen = append(chosen, values[quorum.Readers(len(m.nodes))-1])
		}
	}
	return chosen, nil
}

// reserve keeps the lock for a lease that is seen on at least R readers, with
// the smallest grant seen, which is not above the lease's token (but see setCounter),
// and returns the largest, too.
func reserve(resource string, surveys []map[string]node.CarriedLock, quorumReads int, age time.Duration) (lock node.CarriedLock, largest fencing.Token) {
	for _, survey := range surveys {
		owner := survey[resource].Owner
		kept, seen := node.CarriedLock{Resource: resource}, 0
		largest = 0
		for _, other := range surveys {
			lock, ok := other[resource]
			if !ok || lock.Owner != owner || owner == "" {
				continue
			}
			if seen++; seen == 1 || lock.Grant < kept.Grant {
				kept.Grant = lock.Grant
			}
			largest = max(largest, lock.Grant)
			kept.Owner, kept.Meta, kept.TTL = lock.Owner, lock.Meta, lock.TTL
			kept.Remaining = max(kept.Remaining, lock.Remaining)
			kept.Keyed = kept.Keyed || lock.Keyed
		}
		if kept.Remaining -= age; seen >= quorumReads && kept.Remaining > 0 {
			return kept, largest
		}
	}
	return node.CarriedLock{Resource: resource}, 0
}
