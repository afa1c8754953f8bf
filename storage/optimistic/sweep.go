package optimistic

import (
	"time"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/replica"
)

const (
	sweptRows  = 5000                   // maximum number of rows that one transaction removes
	sweepPause = 100 * time.Millisecond // before the next transaction, if more is left
	sweepRest  = 2 * time.Second        // otherwise
)

// sweep removes rows whose time has passed, and with them old entries, so that the log's size follows the
// resources in use. Every server sweeps. If there is nothing to remove, sweeping costs no request. A failure
// is not logged, because transactions fail, too. If a removal fails, perhaps for lack of time, it is repeated
// in smaller transactions.
func (s *Store) sweep() {
	most := sweptRows
	for rest := sweepRest; pause.For(s.ctx, rest); {
		var err error
		rest, err = s.sweepOnce(most)
		most = min(2*most, sweptRows)
		if err != nil {
			most = max(1, most/4)
		}
	}
}

// sweepOnce removes at most `most` rows, and returns how long to pause afterwards.
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

// ended returns at most `most` keys of rows whose time has passed. more means that further rows, or entries of
// the log, are to be removed.
func (m *Mirror) ended(most int) (keys []string, more bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.state.loaded {
		return nil, false
	}
	keys = m.log.Ended(m.now(), most)
	return keys, len(keys) == most || m.log.TooLong()
}
