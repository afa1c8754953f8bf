package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// errGone says that the schema was deleted while the store is open.
var errGone = errors.New("the schema fencelock, or a part of it, was deleted: restore it; if all of it is gone, " +
	"a server creates an empty one within seconds, and grants again after the longest TTL")

// gone records since when the schema has been missing, and when that was last seen.
type gone struct {
	mu          sync.Mutex
	since, last time.Time
}

// lasts records that the schema is missing, and reports whether it has been missing for `long`. Observations
// come at least every second, so a longer gap means that it was there in between.
func (g *gone) lasts(long time.Duration) bool {
	const gap = 5 * time.Second
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if now.Sub(g.last) > gap {
		g.since = now
	}
	g.last = now
	return now.Sub(g.since) >= long
}

// missing recognises the error of a deleted schema, and creates the schema again if it stays missing. Its
// content is lost. The new tables have another incarnation, so that the servers grant nothing before they have
// handled the loss.
func (s *Store) missing(ctx context.Context, err error) error {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch refused.Code {
	case "3F000", "42P01", "42883": // no schema, table or function
	default:
		return err
	}
	if s.gone.lasts(s.opts.reinstall) {
		if err := install(ctx, s.pool); err != nil {
			return fmt.Errorf("%w: %w", errGone, hinted(err))
		}
	}
	return fmt.Errorf("%w: %w", errGone, err)
}
