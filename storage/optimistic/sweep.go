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
// costs no request. A failure is not logged: the transactions fail, too.
func (s *Store) sweep() {
	timer := time.NewTimer(sweepRest)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(s.sweepOnce())
	}
}

// sweepOnce returns how long to rest then.
func (s *Store) sweepOnce() (rest time.Duration) {
	keys, more := s.mirror.ended()
	if len(keys) == 0 && !more {
		return sweepRest
	}
	err := s.Update(s.ctx, func(t replica.Tx) error {
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
		return sweepRest
	}
	return sweepPause
}

// ended are keys of rows whose time has passed. More: there is more to remove, of these or
// of the log.
func (m *Mirror) ended() (keys []string, more bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.state.loaded {
		return nil, false
	}
	keys = m.log.Ended(m.now(), sweptRows)
	return keys, len(keys) == sweptRows || m.log.TooLong()
}
