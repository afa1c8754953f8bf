package pgstore

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/internal/pause"
)

// sweeping paces the removal of rows whose time has passed.
type sweeping struct {
	page  int           // rows that one statement visits
	pause time.Duration // between two pages, while there is something to remove
	rest  time.Duration // between two passes through the table, and at most between two pages
}

// after returns the pause after a page: shorter if rows were removed, longer if not. So servers share the work
// without coordination, since a server finds little where others have swept. A page costs Postgres 2 ms.
func (s sweeping) after(last time.Duration, deleted int64, page int) time.Duration {
	const worth = 50 // a page is worth its cost if one of this many rows had ended
	if deleted*worth > int64(page) {
		return s.pause
	}
	return max(s.pause, min(2*last, s.rest))
}

// sweep visits the rows, a page at a time, and removes those whose time has passed, so that the table does not
// grow beyond the resources in use. Every server sweeps. A failure is not logged, because transactions fail,
// too. A page that could not be swept, perhaps for lack of time, is repeated as smaller pages.
func (s *Store) sweep() {
	from, page, between := []byte{}, s.opts.sweep.page, s.opts.sweep.pause
	for wait := s.opts.sweep.rest; pause.For(s.ctx, wait); {
		next, deleted, err := s.sweepPage(s.ctx, from, page)
		wait = s.opts.sweep.rest
		switch {
		case err != nil:
			page = max(1, page/2)
		case len(next) == 0:
			from, page = []byte{}, s.opts.sweep.page
		default:
			between = s.opts.sweep.after(between, deleted, page)
			from, page, wait = next, min(page*2, s.opts.sweep.page), between
		}
	}
}

// sweepPage sweeps one page. It returns the first key of the next page (nil after the last), and how many rows
// had ended.
func (s *Store) sweepPage(ctx context.Context, from []byte, page int) (next []byte, deleted int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	err = s.pool.QueryRow(ctx, `SELECT deleted, next FROM fencelock._sweep($1, $2)`, from, page).Scan(&deleted, &next)
	return next, deleted, err
}
