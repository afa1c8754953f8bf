package optimistic

import (
	"time"

	"github.com/fencelock/fencelock/lockcore/replica"
)

const (
	sweptRows  = 5000                   // how many rows one transaction removes at most
	sweepPause = 100 * time.Millisecond // before the next, if there are more
	sweepRest  = 2 * time.Second        // else
)

// sweep removes rows whose time has passed, and with them old entries, so that the log
// follows the resources in use. Each server does. Where there is nothing to remove it
// costs no request. A failure is not logged: the transactions fail, too. What was not
// removed, perhaps for lack of time, is tried again in smaller transactions.
func (s *Store) sweep() {
	most := sweptRows
	timer := time.NewTimer(sweepRest)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		rest, err := s.sweepOnce(most)
		most = min(2*most, sweptRows)
		if err != nil {
			most = max(1, most/4)
		}
		timer.Reset(rest)
	}
}

// sweepOnce removes so many rows at most, and returns how long to rest then.
func (s *Store) sweepOnce(most int) (rest time.Duration, err error) {
	keys, more := s.mirror.ended(most)
	if len(keys) == 0 && !more {
		return sweepRest, nil
	}
	err = s.Update(s.ctx, func(t replica.Tx) error {
		for _, key := range keys {
			if raw, _ := t.Get(key); raw == nil {
				t.Delete(key)
			}
		}
		if run, ok := t.(*tx); ok {
			run.cleans = true
		}
		return nil
	})
	if err != nil || !more {
		return sweepRest, err
	}
	return sweepPause, nil
}

// ended are keys of rows whose time has passed, so many at most. More: there is more to remove, of these or
// of the log.
func (m *Mirror) ended(most int) (keys []string, more bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.state.loaded {
		return nil, false
	}
	keys = m.log.Ended(m.now(), most)
	return keys, len(keys) == most || m.log.TooLong()
}
