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
// not logged: the transactions fail, too. A page that was not swept, perhaps for lack of
// time, is tried again in smaller ones.
func (s *Store) sweep() {
	from, page := []byte{}, s.opts.sweep.page
	timer := time.NewTimer(s.opts.sweep.rest)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		next, err := s.sweepPage(s.ctx, from, page)
		pause := s.opts.sweep.rest
		switch {
		case err != nil:
			page = max(1, page/2)
		case len(next) == 0:
			from, page = []byte{}, s.opts.sweep.page
		default:
			from, page, pause = next, min(page*2, s.opts.sweep.page), s.opts.sweep.pause
		}
		timer.Reset(pause)
	}
}

// sweepPage sweeps one page, and returns where the next begins, nothing after the last.
func (s *Store) sweepPage(ctx context.Context, from []byte, page int) (next []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	var deleted int64
	err = s.pool.QueryRow(ctx, `SELECT deleted, next FROM fencelock._sweep($1, $2)`, from, page).Scan(&deleted, &next)
	return next, err
}
