package boltnode

import (
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// txn is a transaction at one moment.
type txn struct {
	node     *Node
	tx       *bbolt.Tx
	at       moment
	st, old  state
	locks    *bbolt.Bucket
	counters *bbolt.Bucket
	keys     *bbolt.Bucket
	lines    *bbolt.Bucket
	sessions *bbolt.Bucket
	turns    []turn // told once it is in the file
	err      error  // the first that the file gave: the transaction is undone
}

func (n *Node) begin(tx *bbolt.Tx) (*txn, error) {
	st, err := readState(tx)
	if err != nil {
		return nil, err
	}
	t := &txn{node: n, tx: tx, at: n.opts.clock.now(), st: st, old: st}
	if st.admitted() && st.cluster() == (lockcore.Cluster{}) {
		t.st.setCluster(*n.cluster.Load())
	}
	t.openBuckets()
	return t, nil
}

func (t *txn) openBuckets() {
	t.locks = t.tx.Bucket([]byte(locksBucket))
	t.counters = t.tx.Bucket([]byte(countersBucket))
	t.keys = t.tx.Bucket([]byte(keysBucket))
	t.lines = t.tx.Bucket([]byte(linesBucket))
	t.sessions = t.tx.Bucket([]byte(sessionsBucket))
}

// end writes the state if it changed.
func (t *txn) end() error {
	if t.err == nil && t.st != t.old && t.tx.Writable() {
		t.err = writeState(t.tx, t.st)
	}
	return t.err
}

// failed keeps the first error of the file.
func (t *txn) failed(err error) {
	if t.err == nil {
		t.err = err
	}
}

func (t *txn) put(b *bbolt.Bucket, key string, value []byte) { t.failed(b.Put([]byte(key), value)) }

func (t *txn) remove(b *bbolt.Bucket, key string) { t.failed(b.Delete([]byte(key))) }

// left is what is left until an end. What another process wrote has what the
// wall clock left of it when the file was opened, and at most its TTL then.
func (t *txn) left(e end) time.Duration {
	if e.epoch == t.node.epoch {
		return max(0, e.mono-t.at.mono)
	}
	atOpening := min(max(0, e.wall.Sub(t.node.opened.wall)), e.ttl)
	return max(0, atOpening-(t.at.mono-t.node.opened.mono))
}

// after is the end that comes when left has passed.
func (t *txn) after(left, ttl time.Duration) end {
	return end{ttl: ttl, epoch: t.node.epoch, mono: t.at.mono + left, wall: t.at.wall.Add(left)}
}

// lock reads what is written about a resource's lock, and what is left of it:
// 0 if there is none or it has ended.
func (t *txn) lock(resource string) (l lock, left time.Duration) {
	raw := t.locks.Get([]byte(resource))
	if raw == nil {
		return l, 0
	}
	l, ok := decodeLock(raw)
	if !ok {
		t.failed(errCorrupt)
		return l, 0
	}
	return l, t.left(l.end)
}

func (t *txn) setLock(resource string, l lock) { t.put(t.locks, resource, l.encode()) }

// scope gives what an idempotency key, by its owner, is used for.
func (t *txn) scope(owner string) (scope string, used bool) {
	raw := t.keys.Get([]byte(owner))
	if raw == nil {
		return "", false
	}
	e, rest, ok := cutEnd(raw)
	if !ok {
		t.failed(errCorrupt)
		return "", false
	}
	return string(rest), t.left(e) > 0
}

func (t *txn) setScope(owner, scope string, ttl time.Duration) {
	t.put(t.keys, owner, append(t.after(ttl, ttl).append(nil), scope...))
}

// alive: the server has kept its tickets alive.
func (t *txn) alive(server string) bool {
	raw := t.sessions.Get([]byte(server))
	if raw == nil {
		return false
	}
	e, _, ok := cutEnd(raw)
	if !ok {
		t.failed(errCorrupt)
	}
	return ok && t.left(e) > 0
}

func (t *txn) keepAlive(server string, ttl time.Duration) {
	t.put(t.sessions, server, t.after(ttl, ttl).append(nil))
}

// counter is the effective counter (a missing one reads as high, rule 4), and
// whether there is one of its own. A counter never goes before its lock.
func (t *txn) counter(resource string) (value fencing.Token, present bool) {
	raw := t.counters.Get([]byte(resource))
	if raw == nil {
		return t.st.High, false
	}
	c, ok := decodeCounter(raw)
	if !ok {
		t.failed(errCorrupt)
		return t.st.High, false
	}
	if c.until.After(t.at.wall) {
		return c.value, true
	}
	if _, left := t.lock(resource); left > 0 {
		return c.value, true
	}
	return t.st.High, false
}

// count writes a counter, afresh in its time to live, and raises high to it.
func (t *txn) count(resource string, value fencing.Token) {
	c := counter{value: value, until: t.at.wall.Add(t.node.opts.CounterTTL)}
	t.put(t.counters, resource, c.encode())
	t.st.High = max(t.st.High, value)
}
