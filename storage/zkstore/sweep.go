package zkstore

import (
	"context"
	"time"
)

// sweeping paces the removal of rows whose time has passed.
type sweeping struct {
	rows  int           // how many one transaction removes at most
	pause time.Duration // before the next, if there are more
	rest  time.Duration // else
}

// sweep removes rows whose time has passed, and with them old entries, so that the log
// follows the resources in use. Each server does. Where there is nothing to remove it
// costs no request. A failure is not logged: the transactions fail, too.
func (s *Store) sweep() {
	life := ""
	for rest := s.opts.sweep.rest; pause(s.ctx, rest); {
		rest = s.opts.sweep.rest
		if now := s.life(); now != life { // it starts, or the log began again
			ctx, cancel := context.WithTimeout(s.ctx, s.opts.Timeout)
			s.deleteStrays(ctx)
			cancel()
			life = now
		}
		if keys, more := s.expired(); len(keys) > 0 || more {
			if s.update(s.ctx, func(t *tx) error { t.sweep(keys); return nil }) == nil && more {
				rest = s.opts.sweep.pause
			}
		}
	}
}

func (s *Store) life() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mirror.name()
}

// expired are keys of rows whose time has passed. More: there is more to remove, of these
// or of the log.
func (s *Store) expired() (keys []string, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mirror == nil || !s.clock.known {
		return nil, false
	}
	low, _ := s.clock.now(s.mirror.correction)
	keys = s.mirror.Ended(low, s.opts.sweep.rows)
	return keys, len(keys) == s.opts.sweep.rows || s.mirror.TooLong()
}

// sweep deletes those of the rows whose time has passed, and is written even if there is
// none: the log is cleaned by what is written.
func (t *tx) sweep(keys []string) {
	for _, key := range keys {
		if row, there := t.m.Get(key); there && row.Ends <= t.low {
			t.gone = append(t.gone, key)
		}
	}
	t.cleans = true
}
