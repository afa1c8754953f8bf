package boltnode

import (
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// sweeping paces the removal of what has ended.
type sweeping struct {
	page  int           // how many entries of a bucket one transaction looks at
	pause time.Duration // between two pages
	rest  time.Duration // between two passes through the file
}

// sweeper walks through the buckets, a page at a time, and removes what has
// ended, so that the file follows the resources in use. It keeps nothing in
// memory but its places.
type sweeper struct {
	node  *Node
	timer *time.Timer
	walks []walk
}

// walk is a way through one bucket.
type walk struct {
	bucket string
	ended  func(t *txn, key string) bool // stays true
	next   []byte                        // the first key of the next page; nil for the first
	done   bool                          // this pass has been through
}

func newSweeper(n *Node) *sweeper {
	return &sweeper{node: n, timer: time.NewTimer(n.opts.sweep.rest), walks: []walk{
		{bucket: locksBucket, ended: (*txn).lockEnded},
		{bucket: countersBucket, ended: (*txn).counterEnded},
		{bucket: keysBucket, ended: (*txn).scopeEnded},
		{bucket: linesBucket, ended: (*txn).someDead},
		{bucket: sessionsBucket, ended: (*txn).sessionEnded},
	}}
}

// sweep looks at one page of each bucket. It writes only if something has
// ended. A failure is not told: the same file fails in every commit.
func (s *sweeper) sweep() {
	ended := make(map[string][]string)
	err := s.node.transact(false, func(t *txn) {
		for i := range s.walks {
			if w := &s.walks[i]; !w.done {
				w.page(t, ended)
			}
		}
	})
	if err == nil && len(ended) > 0 {
		_ = s.node.transact(true, func(t *txn) { t.sweep(ended) })
	}
	s.pace()
}

// pace sets when to go on.
func (s *sweeper) pace() {
	for i := range s.walks {
		if !s.walks[i].done {
			s.timer.Reset(s.node.opts.sweep.pause)
			return
		}
	}
	for i := range s.walks {
		s.walks[i].next, s.walks[i].done = nil, false
	}
	s.timer.Reset(s.node.opts.sweep.rest)
}

// page notes which of the next few keys have ended.
func (w *walk) page(t *txn, ended map[string][]string) {
	c := t.tx.Bucket([]byte(w.bucket)).Cursor()
	key, _ := c.Seek(w.next)
	for looks := 0; key != nil && looks < t.node.opts.sweep.page; looks++ {
		if name := string(key); w.ended(t, name) {
			ended[w.bucket] = append(ended[w.bucket], name)
		}
		key, _ = c.Next()
	}
	w.next = append([]byte(nil), key...)
	w.done = key == nil
}

// sweep removes what has ended. No other transaction of the node came between
// the look and this.
func (t *txn) sweep(ended map[string][]string) {
	for bucket, keys := range ended {
		for _, key := range keys {
			if bucket == linesBucket {
				t.sweepLine(key)
			} else {
				t.remove(t.tx.Bucket([]byte(bucket)), key)
			}
		}
	}
}

func (t *txn) lockEnded(resource string) bool {
	_, left := t.lock(resource)
	return left == 0
}

func (t *txn) counterEnded(resource string) bool {
	_, present := t.counter(resource)
	return !present
}

func (t *txn) scopeEnded(owner string) bool {
	_, used := t.scope(owner)
	return !used
}

func (t *txn) sessionEnded(server string) bool { return !t.alive(server) }

// someDead reports whether any of the first in line is dead.
func (t *txn) someDead(resource string) bool { return len(t.dead(resource)) > 0 }

func (t *txn) sweepLine(resource string) {
	for _, ticket := range t.dead(resource) {
		t.line(resource).leave(ticket)
	}
}

// dead gives the dead among the first in line. Those behind come to the front
// in time.
func (t *txn) dead(resource string) (tickets []lockcore.Ticket) {
	const most = 16 // of one line: one look at many lines must stay short
	l := t.line(resource)
	for _, ticket := range l.list(most) {
		if !l.lives(ticket) {
			tickets = append(tickets, ticket)
		}
	}
	return tickets
}
