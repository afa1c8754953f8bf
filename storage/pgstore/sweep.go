package pgstore

import (
	"context"
	"time"
)

// sweeping paces the removal of rows whose time has passed.
type sweeping struct {
	page  int           // how many rows one statement looks at
	pause time.Duration // between two pages, while there is something to remove
	rest  time.Duration // between two passes through the table, and at most between two pages
}

// after is the pause after a page: shorter where there was something to remove, longer where
// there was not. So servers share the work without knowing of each other, since each finds
// little where others have swept: a page costs Postgres 2 ms.
func (s sweeping) after(last time.Duration, deleted int64, page int) time.Duration {
	const worth = 50 // a page is worth its cost if one row of so many had ended
	if deleted*worth > int64(page) {
		return s.pause
	}
	return max(s.pause, min(2*last, s.rest))
}

// sweep walks through the rows, a page at a time, and removes those whose time has
// passed, so that the table follows the resources in use. Each server does. A failure is
// not logged: the transactions fail, too. A page that was not swept, perhaps for lack of
// time, is tried again in smaller ones.
func (s *Store) sweep() {
	from, page, between := []byte{}, s.opts.sweep.page, s.opts.sweep.pause
	timer := time.NewTimer(s.opts.sweep.rest)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		next, deleted, err := s.sweepPage(s.ctx, from, page)
		pause := s.opts.sweep.rest
		switch {
		case err != nil:
			page = max(1, page/2)
		case len(next) == 0:
			from, page = []byte{}, s.opts.sweep.page
		default:
			between = s.opts.sweep.after(between, deleted, page)
			from, page, pause = next, min(page*2, s.opts.sweep.page), between
		}
		timer.Reset(pause)
	}
}

// sweepPage sweeps one page, and returns where the next begins, nothing after the last, and how many rows had ended.
func (s *Store) sweepPage(ctx context.Context, from []byte, page int) (next []byte, deleted int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	err = s.pool.QueryRow(ctx, `SELECT deleted, next FROM fencelock._sweep($1, $2)`, from, page).Scan(&deleted, &next)
	return next, deleted, err
}
