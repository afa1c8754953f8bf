package backend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/engine"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// openEngine opens the node of FENCELOCK_STORE: a single node whose store is replicated and shared by
// several servers. An engine implements only replica.Store.
func (b *Backend) openEngine(ctx context.Context) (*replica.Node, error) {
	e, known := engine.Of(b.cfg.Store)
	if !known {
		return nil, errors.New("FENCELOCK_STORE has an unknown scheme") // config refuses it
	}
	timeout := max(b.cfg.NodeTimeout, time.Second)
	store, err := e.Open(ctx, b.cfg.Store, engine.Options{Timeout: timeout, Logger: b.opts.Logger, Credentials: b.login("FENCELOCK_STORE", b.cfg.Store)})
	if err != nil {
		return nil, fmt.Errorf("FENCELOCK_STORE: %w", err)
	}
	b.closers = append(b.closers, store.Close)
	b.channels = append(b.channels, store)
	b.Mode = e.Mode + ", which several servers may share: the locks are in " + store.Place()
	node, err := b.openReplica(ctx, e.Name, store, replica.Options{Bootstrap: b.opts.Tool == nil && store.Young(), Timeout: timeout})
	if err != nil {
		return nil, fmt.Errorf("FENCELOCK_STORE: %w", err)
	}
	return node, nil
}

// Unreached reports whether an error of Open means that an engine does not respond, so that a later Open
// may succeed.
func Unreached(err error) bool {
	_, unreached := errors.AsType[*replica.UnreachedError](err)
	return unreached
}
