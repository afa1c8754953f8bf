package replica

import (
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Rules tune a Machine. The zero value of a field takes its default.
type Rules struct {
	// CounterTTL is how long a counter is kept after its last use; default 24h. A missing counter reads as the
	// node's high-water mark (rule 4).
	CounterTTL time.Duration
	// Page bounds the locks of a page of Survey and Scan; default 500.
	Page int
	// Weak are rules that it breaks, for tests; default none.
	Weak Weakness
}

// Machine has the rules of one node. Its only state is the name of its cluster; everything else is in the
// store.
type Machine struct {
	rules   Rules
	cluster atomic.Pointer[node.Cluster]
}

// NewMachine makes a node's rules.
func NewMachine(rules Rules) *Machine {
	if rules.CounterTTL == 0 {
		rules.CounterTTL = 24 * time.Hour
	}
	if rules.Page == 0 {
		rules.Page = 500
	}
	m := &Machine{rules: rules}
	m.Join(node.Cluster{})
	return m
}

// Join sets the caller's cluster. A node that bootstrapped itself belongs to the first cluster that joins.
func (m *Machine) Join(c node.Cluster) { m.cluster.Store(&c) }

// In runs do in a transaction. It reads the node's record first, and writes it afterwards if it has changed.
func (m *Machine) In(tx Tx, do func(*Txn) error) error {
	raw, _ := tx.Get(recordKey)
	rec, err := decodeRecord(raw)
	if err != nil {
		return err
	}
	t := &Txn{m: m, tx: tx, status: tx.Status(), rec: rec}
	if t.admitted() && rec.cluster() == (node.Cluster{}) {
		t.rec.setCluster(*m.cluster.Load()) // written with the first change, because a View may come first
	}
	t.read = t.rec
	if err := do(t); err != nil {
		return err
	}
	return t.end()
}

// Txn is the state of a Machine in one transaction.
type Txn struct {
	m      *Machine
	tx     Tx
	status Status
	rec    record
	read   record // the record as it was read
	err    error  // the first unreadable row, because of which the transaction is undone
}

// end writes the record if it changed.
func (t *Txn) end() error {
	if t.err == nil && t.rec != t.read {
		t.tx.Put(recordKey, t.rec.encode(), 0)
	}
	return t.err
}

func (t *Txn) weak(w Weakness) bool { return t.m.rules.Weak&w != 0 }

// admitted reports that the record names the present incarnation (rule 6).
func (t *Txn) admitted() bool {
	return t.rec.Admitted != "" && (t.rec.Admitted == t.status.Incarnation || t.weak(OpensForAnyIncarnation))
}

// open is the gate without the check of the caller's epoch.
func (t *Txn) open() bool {
	return t.status.Unfit == "" && t.admitted() && t.rec.cluster() == *t.m.cluster.Load()
}

// mapped reports that the node has the map by which the caller counts votes (rule 30).
func (t *Txn) mapped(name string) bool {
	return t.open() && (t.rec.Map.Name == name || t.weak(VotesInAnyMap))
}

// lock reads a resource's lock and its remaining time, which is 0 if there is no lock.
func (t *Txn) lock(resource string) (l lock, left time.Duration) {
	raw, left := t.tx.Get(LockKey(resource))
	if raw == nil {
		return l, 0
	}
	l, ok := decodeLock(raw)
	if !ok {
		t.err = Unreadable(LockKey(resource))
		return lock{}, 0
	}
	return l, left
}

func (t *Txn) setLock(resource string, l lock, left time.Duration) {
	t.tx.Put(LockKey(resource), l.encode(), left)
}

// number reads a row that is a number.
func (t *Txn) number(key string) (n int64, present bool) {
	raw, _ := t.tx.Get(key)
	if raw == nil {
		return 0, false
	}
	n, present = decodeNumber(raw)
	if !present {
		t.err = Unreadable(key)
	}
	return n, present
}

// counter returns the effective counter (a missing one reads as the high-water mark, rule 4), and whether the
// resource has a counter of its own.
func (t *Txn) counter(resource string) (value fencing.Token, present bool) {
	n, present := t.number(CounterKey(resource))
	switch {
	case present:
		return fencing.Token(n), true
	case t.weak(ForgetsHighWater):
		return 0, false
	}
	return t.rec.HighWater, false
}

// unlockedCounter is the effective counter of a resource that is not locked: at least the floor,
// below which another set may have granted tokens (rule 30).
func (t *Txn) unlockedCounter(resource string) fencing.Token {
	value, _ := t.counter(resource)
	if t.weak(IgnoresMapFloor) {
		return value
	}
	return max(value, t.rec.Map.Floor)
}

// count writes a counter with a new TTL, and raises the high-water mark to it.
func (t *Txn) count(resource string, value fencing.Token) {
	t.tx.Put(CounterKey(resource), encodeNumber(int64(value)), t.m.rules.CounterTTL)
	t.rec.HighWater = max(t.rec.HighWater, value)
}

// touchCounter restarts a counter's TTL.
func (t *Txn) touchCounter(resource string) {
	if value, present := t.counter(resource); present {
		t.count(resource, value)
	}
}

// scope returns what an idempotency key's owner value is used for.
func (t *Txn) scope(owner string) (scope string, used bool) {
	raw, _ := t.tx.Get(ScopeKey(owner))
	return string(raw), raw != nil
}
