package membership

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// carryPage is how many resources one call of a rejoin reads or writes.
const carryPage = 500

// survey contains the locks of one node, by resource.
type survey map[string]node.CarriedLock

// readLocks reads, from at least R readers, what a rejoining node must know so that live leases survive a
// rolling restart (rule 21): the counter of every resource that is locked on a reader, and the locks of
// leases.
func (c *Controller) readLocks(ctx context.Context, readers []int, epoch node.Epoch) ([]node.CarriedLock, error) {
	began := time.Now()
	read, err := c.readState(ctx, readers, epoch)
	if err != nil {
		return nil, err
	}
	quorumReads := quorum.Readers(len(c.nodes))
	carried := make([]node.CarriedLock, len(read.resources))
	for k, resource := range read.resources {
		carried[k] = carry(resource, read.surveys, quorumReads, time.Since(began), read.counters[k])
	}
	return carried, nil
}

// state is the state of at least R readers in one epoch.
type state struct {
	readers   int
	surveys   []survey // by node; nil if the node is not a reader
	resources []string // resources that are locked on a reader
	counters  []fencing.Token
}

func (c *Controller) readState(ctx context.Context, readers []int, epoch node.Epoch) (*state, error) {
	surveys := make([]survey, len(c.nodes))
	sideBySide(readers, func(i int) { surveys[i] = c.survey(ctx, i, epoch) })
	readers = slices.DeleteFunc(slices.Clone(readers), func(i int) bool { return surveys[i] == nil })
	if err := c.checkReaders(readers, "listed their locks"); err != nil {
		return nil, err
	}
	all := make(survey)
	for _, s := range surveys {
		maps.Copy(all, s)
	}
	resources := slices.Sorted(maps.Keys(all))
	counters, err := c.readCounters(ctx, readers, epoch, resources)
	return &state{readers: len(readers), surveys: surveys, resources: resources, counters: counters}, err
}

// survey returns every lock of node i. After an error it logs the error, and returns nil.
func (c *Controller) survey(ctx context.Context, i int, epoch node.Epoch) survey {
	locks := make(survey)
	for cursor := ""; ; {
		calling, cancel := context.WithTimeout(ctx, c.cfg.callTimeout())
		page, next, err := c.nodes[i].Survey(calling, epoch, cursor)
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				c.cfg.Logger.Info("a node could not be read for a rejoin", "node", c.nodes[i].Name(), "error", err)
			}
			return nil
		}
		for _, lock := range page {
			locks[lock.Resource] = lock
		}
		if cursor = next; cursor == "" {
			return locks
		}
	}
}

// readCounters returns for each resource the R-th smallest effective counter of the readers. Any R
// readers include a node of every completed quorum, so the largest of the R smallest counters is large
// enough. A smaller value might not be.
func (c *Controller) readCounters(ctx context.Context, readers []int, epoch node.Epoch, resources []string) ([]fencing.Token, error) {
	r := quorum.Readers(len(c.nodes))
	chosen := make([]fencing.Token, 0, len(resources))
	for page := range slices.Chunk(resources, carryPage) {
		read := make([][]fencing.Token, len(c.nodes))
		c.forEach(ctx, readers, func(ctx context.Context, i int) {
			if counters, err := c.nodes[i].Counters(ctx, epoch, page); err == nil && len(counters) == len(page) {
				read[i] = counters
			}
		})
		read = slices.DeleteFunc(read, func(counters []fencing.Token) bool { return counters == nil })
		if len(read) < r {
			return nil, fmt.Errorf("%d nodes read their counters, and %d are needed", len(read), r)
		}
		for k := range page {
			values := make([]fencing.Token, len(read))
			for i := range read {
				values[i] = read[i][k]
			}
			slices.Sort(values)
			chosen = append(chosen, values[r-1])
		}
	}
	return chosen, nil
}

// carry returns a resource's counter, and the lock of its lease if there may be one. A lock under an
// idempotency key with a grant below the counter is dropped, because the lease's release would leave it.
// Any other lock gets a grant that is at least the counter: with a smaller grant it would accept a
// confirm or an extend with a token below the counter, although a larger token may have been granted
// since.
func carry(resource string, surveys []survey, quorumReads int, age time.Duration, counter fencing.Token) node.CarriedLock {
	lock, largest := reserve(resource, surveys, quorumReads, age)
	if lock.Keyed && counter > largest {
		lock = node.CarriedLock{Resource: resource}
	}
	lock.Counter = counter
	if lock.Owner != "" {
		lock.Grant = max(lock.Grant, counter)
	}
	return lock
}

// reserve returns the lock of a lease that at least R readers have, and its largest grant. The lock gets
// its smallest grant, which is at most the lease's token.
func reserve(resource string, surveys []survey, quorumReads int, age time.Duration) (lock node.CarriedLock, largest fencing.Token) {
	for _, s := range surveys {
		locks := locksOf(s[resource].Owner, resource, surveys)
		if len(locks) < quorumReads {
			continue
		}
		kept := locks[0]
		largest = kept.Grant
		for _, lock := range locks[1:] {
			kept.Grant, largest = min(kept.Grant, lock.Grant), max(largest, lock.Grant)
			kept.Meta, kept.TTL = lock.Meta, lock.TTL
			kept.Remaining = max(kept.Remaining, lock.Remaining)
			kept.Keyed = kept.Keyed || lock.Keyed
		}
		if kept.Remaining -= age; kept.Remaining > 0 {
			return kept, largest
		}
	}
	return node.CarriedLock{Resource: resource}, 0
}

// locksOf returns the locks that an owner has on the readers; none if owner is "". It limits the rest of
// each lock to its TTL: it is longer on a node whose clock was set back (rule 21).
func locksOf(owner, resource string, surveys []survey) (locks []node.CarriedLock) {
	for _, s := range surveys {
		if lock := s[resource]; owner != "" && lock.Owner == owner {
			lock.Remaining = min(lock.Remaining, lock.TTL)
			locks = append(locks, lock)
		}
	}
	return locks
}
