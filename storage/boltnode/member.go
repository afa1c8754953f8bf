package boltnode

import (
	"bytes"
	"context"
	"encoding/base64"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// Observe looks at the node.
func (n *Node) Observe(ctx context.Context) (lockcore.Observation, error) {
	return ask(ctx, n, func(t *txn) (lockcore.Observation, error) {
		return lockcore.Observation{
			Incarnation: t.st.Incarnation, Admitted: t.st.admitted(), Cluster: t.st.cluster(),
			View: t.st.View, Staged: t.st.Staged, Marks: t.marks(), Empty: t.st.empty(), Note: t.st.Note,
		}, nil
	})
}

func (t *txn) marks() lockcore.Marks {
	return lockcore.Marks{
		High: t.st.High, MaxTTL: time.Duration(t.st.MaxTTL) * time.Millisecond, Founded: t.st.Founded,
	}
}

// ask reads something in a transaction.
func ask[T any](ctx context.Context, n *Node, read func(*txn) (T, error)) (T, error) {
	return result(ctx, n, false, read)
}

// result runs f in a transaction and gives its result; the zero one with an error.
func result[T any](ctx context.Context, n *Node, writes bool, f func(*txn) (T, error)) (T, error) {
	answer := new(T) // f may still write to it after ctx has ended
	err := n.do(ctx, &call{writes: writes, run: func(t *txn) (err error) {
		*answer, err = f(t)
		return err
	}})
	if err != nil {
		var none T
		return none, err
	}
	return *answer, nil
}

// reading is the gate of fenced reads: exactly this view.
func (t *txn) reading(view lockcore.View) error {
	switch {
	case !t.open():
		return lockcore.ErrNotAdmitted
	case t.st.View != view:
		return &lockcore.StaleViewError{View: t.st.View}
	}
	return nil
}

// Fence installs a view and returns the marks.
func (n *Node) Fence(ctx context.Context, view lockcore.View) (lockcore.Marks, error) {
	return result(ctx, n, true, func(t *txn) (lockcore.Marks, error) {
		switch {
		case !t.open():
			return lockcore.Marks{}, lockcore.ErrNotAdmitted
		case t.st.View >= view:
			return lockcore.Marks{}, &lockcore.StaleViewError{View: t.st.View}
		}
		t.st.View = view
		return t.marks(), nil
	})
}

// surveyPage is how many locks one page of a survey holds, and scanLooks at how
// many entries one page of a listing looks at most: some may have ended.
const (
	surveyPage = 500
	scanLooks  = 10_000
)

// Survey lists a page of locks.
func (n *Node) Survey(ctx context.Context, view lockcore.View, cursor string) ([]lockcore.CarriedLock, string, error) {
	p, err := n.page(ctx, "", cursor, surveyPage, func(t *txn) error { return t.reading(view) })
	return p.locks, p.next, err
}

// Scan lists a page of locked resources.
func (n *Node) Scan(ctx context.Context, prefix, cursor string, limit int) (resources []string, next string, err error) {
	p, err := n.page(ctx, prefix, cursor, limit, func(t *txn) error {
		if !t.open() {
			return lockcore.ErrNotAdmitted
		}
		return nil
	})
	for _, l := range p.locks {
		resources = append(resources, l.Resource)
	}
	return resources, p.next, err
}

// page is a part of the locks in the order of their resources.
type page struct {
	locks []lockcore.CarriedLock
	next  string // a cursor: the last resource looked at, as URL-safe text
}

func (n *Node) page(ctx context.Context, prefix, cursor string, limit int, gate func(*txn) error) (page, error) {
	after, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return page{}, &lockcore.FieldError{Field: "cursor", Reason: "must be the next_cursor of an earlier page"}
	}
	return ask(ctx, n, func(t *txn) (page, error) {
		if err := gate(t); err != nil {
			return page{}, err
		}
		return t.page([]byte(prefix), after, max(limit, 1)), nil
	})
}

// page lists live locks behind a resource, until limit or the end of the prefix.
func (t *txn) page(prefix, after []byte, limit int) (p page) {
	c := t.locks.Cursor()
	start := prefix
	if bytes.Compare(after, start) > 0 {
		start = after
	}
	key, value := c.Seek(start)
	if len(after) > 0 && bytes.Equal(key, after) {
		key, value = c.Next()
	}
	for looks := 1; key != nil && bytes.HasPrefix(key, prefix); looks++ {
		if l, ok := decodeLock(value); !ok {
			t.failed(errCorrupt)
		} else if left := t.left(l.end); left > 0 {
			p.locks = append(p.locks, carried(string(key), l, left))
		}
		if len(p.locks) == limit || looks == scanLooks {
			p.next = base64.RawURLEncoding.EncodeToString(key)
			return p
		}
		key, value = c.Next()
	}
	return p
}

func carried(resource string, l lock, left time.Duration) lockcore.CarriedLock {
	return lockcore.CarriedLock{
		Resource: resource, Owner: l.owner, Grant: l.grant, Remaining: whole(left), TTL: l.ttl, Meta: l.meta, Keyed: l.note != "",
	}
}

// noteOf: the attempts of a carried lock are not carried, so that none takes it back.
func noteOf(l lockcore.CarriedLock) string {
	if l.Keyed {
		return shared
	}
	return ""
}

// Counters reads effective counters.
func (n *Node) Counters(ctx context.Context, view lockcore.View, resources []string) ([]fencing.Token, error) {
	return ask(ctx, n, func(t *txn) ([]fencing.Token, error) {
		if err := t.reading(view); err != nil {
			return nil, err
		}
		counters := make([]fencing.Token, len(resources))
		for i, resource := range resources {
			counters[i], _ = t.counter(resource)
		}
		return counters, nil
	})
}

// Quarantine notes that the node's silence has begun.
func (n *Node) Quarantine(ctx context.Context, note string) error {
	return n.change(ctx, func(t *txn) error {
		switch {
		case !t.st.empty() && t.st.cluster() != *t.node.cluster.Load():
			return lockcore.ErrForeign
		case t.st.admitted():
			return lockcore.ErrRaced
		case t.st.Note == "":
			t.st.Note = note
		}
		return nil
	})
}

// Stage purges the node for an admission.
func (n *Node) Stage(ctx context.Context, a lockcore.Admission) error {
	return n.change(ctx, func(t *txn) error {
		if err := t.stageable(a); err != nil {
			return err
		}
		for _, bucket := range []string{locksBucket, countersBucket, keysBucket, linesBucket, sessionsBucket} {
			t.failed(purge(t.tx, bucket))
		}
		t.openBuckets()
		t.st = state{
			Format: t.st.Format, Epoch: t.st.Epoch, Incarnation: t.st.Incarnation,
			Nodes: a.Cluster.Nodes, Hash: a.Cluster.Hash, Staged: a.View, Note: a.Note,
			MaxTTL: t.st.MaxTTL, High: max(t.st.High, a.Floor),
		}
		return nil
	})
}

func (t *txn) stageable(a lockcore.Admission) error {
	empty := t.st.empty()
	switch {
	case t.st.Incarnation != a.Incarnation, a.OnlyIfEmpty && !empty:
		return lockcore.ErrRaced
	case !empty && t.st.cluster() != a.Cluster:
		return lockcore.ErrForeign
	case t.st.note() != a.Note, t.st.admitted() && t.st.View >= a.Founded, t.st.Staged > a.View:
		return lockcore.ErrRaced
	}
	return nil
}

func (n *Node) change(ctx context.Context, f func(*txn) error) error {
	return n.do(ctx, &call{writes: true, run: f})
}

// staged: this very incarnation was staged for this admission (rule 10).
func (t *txn) staged(a lockcore.Admission) bool {
	return t.st.Staged == a.View && t.st.Incarnation == a.Incarnation
}

// Load writes carried counters and locks.
func (n *Node) Load(ctx context.Context, a lockcore.Admission, locks []lockcore.CarriedLock) error {
	return n.change(ctx, func(t *txn) error {
		if !t.staged(a) {
			return lockcore.ErrRaced
		}
		for _, l := range locks {
			t.count(l.Resource, l.Counter)
			if l.Owner != "" {
				t.setLock(l.Resource, lock{
					end:   t.after(max(l.Remaining, time.Millisecond), l.TTL),
					grant: l.Grant, owner: l.Owner, note: noteOf(l), meta: l.Meta,
				})
			}
		}
		return nil
	})
}

// Admit opens the gate.
func (n *Node) Admit(ctx context.Context, a lockcore.Admission) error {
	return n.change(ctx, func(t *txn) error {
		if !t.staged(a) {
			return lockcore.ErrRaced
		}
		t.st.Admitted, t.st.Staged, t.st.Note = t.st.Incarnation, 0, ""
		t.st.View, t.st.Founded = a.View, a.Founded
		t.st.MaxTTL = max(t.st.MaxTTL, a.MaxTTL.Milliseconds())
		return nil
	})
}

// RaiseMaxTTL records a longer TTL.
func (n *Node) RaiseMaxTTL(ctx context.Context, ttl time.Duration) error {
	return n.change(ctx, func(t *txn) error {
		if !t.open() {
			return lockcore.ErrNotAdmitted
		}
		t.st.MaxTTL = max(t.st.MaxTTL, ttl.Milliseconds())
		return nil
	})
}
