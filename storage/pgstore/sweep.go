package pgstore

import (
	"context"
	"time"
)

// sweeping paces the removal of rows whose time has passed.
type sweeping struct {
	page  int           // how many rows one statement looks at
	pause time.Duration // between two pages
	rest  time.Duration // between two passes through the table
}

// sweep walks through the rows, a page at a time, and removes those whose time has
// passed, so that the table follows the resources in use. Each server does. A failure is
// not logged: the transactions fail, too.
func (s *Store) sweep() {
	from := []byte{}
	timer := time.NewTimer(s.opts.sweep.rest)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		from = s.sweepPage(s.ctx, from)
		pause := s.opts.sweep.pause
		if len(from) == 0 {
			pause = s.opts.sweep.rest
		}
		timer.Reset(pause)
	}
}

// sweepPage sweeps one page, and returns where the next begins, nothing after the last.
func (s *Store) sweepPage(ctx context.Context, from []byte) (next []byte) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	var deleted int64
	err := s.pool.QueryRow(ctx, `SELECT deleted, next FROM fencelock._sweep($1, $2)`, from, s.opts.sweep.page).Scan(&deleted, &next)
	if err != nil || next == nil {
		return []byte{}
	}
	return next
}
