package backend

import (
	"context"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/pgstore"
)

// postgresName is the same for every database, since the admission record is bound to
// it and a database may move.
const postgresName = "postgres"

// openEngine opens the node of FENCELOCK_STORE: a single node whose store is replicated,
// and which several servers share. An engine brings a replica.Store and nothing else;
// the next one is chosen here, by the scheme of the URL.
func (b *Backend) openEngine(ctx context.Context) (*replica.Node, error) {
	node, err := b.openPostgres(ctx)
	if err != nil {
		return nil, fmt.Errorf("FENCELOCK_STORE: %w", err)
	}
	return node, nil
}

func (b *Backend) openPostgres(ctx context.Context) (*replica.Node, error) {
	store, err := pgstore.Open(ctx, b.cfg.Store, pgstore.Options{Timeout: max(b.cfg.NodeTimeout, time.Second)})
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, store.Close)
	b.channels = append(b.channels, store)
	b.Mode = "one Postgres, which several servers may share: the locks are in " + store.Place()
	return b.openReplica(ctx, postgresName, store, replica.Options{Bootstrap: b.opts.Tool == nil && store.Young()})
}
