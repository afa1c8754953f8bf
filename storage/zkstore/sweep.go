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
// costs no request. A failure is not logged: the transactions fail, too. What was not
// removed, perhaps for lack of time, is tried again in smaller transactions.
func (s *Store) sweep() {
	life, most := "", s.opts.sweep.rows
	for rest := s.opts.sweep.rest; pause(s.ctx, rest); {
		rest = s.opts.sweep.rest
		if now := s.life(); now != life { // it starts, or the log began again
			ctx, cancel := context.WithTimeout(s.ctx, s.opts.Timeout)
			s.deleteStrays(ctx)
			cancel()
			life = now
		}
		keys, more := s.expired(most)
		if len(keys) == 0 && !more {
			continue
		}
		switch err := s.update(s.ctx, func(t *tx) error { t.sweep(keys); return nil }); {
		case err != nil:
			most = max(1, most/2)
			continue
		case more:
			rest = s.opts.sweep.pause
		}
		most = min(2*most, s.opts.sweep.rows)
	}
}

func (s *Store) life() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mirror.name()
}

// expired are keys of rows whose time has passed, so many at most. More: there is more to remove, of these
// or of the log.
func (s *Store) expired(most int) (keys []string, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mirror == nil || !s.clock.known {
		return nil, false
	}
	low, _ := s.clock.now(s.mirror.correction)
	keys = s.mirror.Ended(low, most)
	return keys, len(keys) == most || s.mirror.TooLong()
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
