package boltstore

import (
	"time"

	"go.etcd.io/bbolt"
)

// sweeping paces the removal of rows whose time has passed.
type sweeping struct {
	page  int           // rows that one transaction visits
	pause time.Duration // between two pages
	rest  time.Duration // between two passes through the file
}

// sweep visits the rows, a page at a time, and removes those whose time has passed, so that the file does not
// grow beyond the resources in use. It does not log a failure, because every commit to the same file fails,
// too.
func (s *Store) sweep() {
	var next []byte // the first key of the next page; nil for the first
	pause := s.opts.sweep.rest
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-s.closed:
			return
		case <-timer.C:
		}
		next = s.sweepPage(next)
		pause = s.opts.sweep.pause
		if next == nil {
			pause = s.opts.sweep.rest
		}
		timer.Reset(pause)
	}
}

// sweepPage visits one page. It returns the first key of the next page, or nil after the last page. It writes
// only if a row's time has passed.
func (s *Store) sweepPage(from []byte) (next []byte) {
	var ended []string
	err := s.db.View(func(btx *bbolt.Tx) error {
		t := s.begin(btx)
		c := t.rows.Cursor()
		key, raw := c.Seek(from)
		for looks := 0; key != nil && looks < s.opts.sweep.page; looks++ {
			if _, _, live := t.read(key, raw); !live {
				ended = append(ended, string(key))
			}
			key, raw = c.Next()
		}
		next = append(next, key...)
		return t.err
	})
	if err != nil {
		return nil
	}
	if len(ended) > 0 {
		_ = s.db.Update(func(btx *bbolt.Tx) error { return s.remove(btx, ended) })
	}
	return next
}

// remove deletes the rows whose time is still over: a row may have been rewritten since sweepPage saw it.
func (s *Store) remove(btx *bbolt.Tx, keys []string) error {
	t := s.begin(btx)
	for _, key := range keys {
		if _, _, live := t.get(key); !live {
			t.Delete(key)
		}
	}
	return t.err
}
