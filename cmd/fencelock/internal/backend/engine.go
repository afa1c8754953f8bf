package backend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/etcdstore"
	"github.com/fencelock/fencelock/storage/pgstore"
	"github.com/fencelock/fencelock/storage/zkstore"
)

// The nodes' names are the same for every database and ensemble, because the admission record contains
// the name, and a database may be moved.
const (
	postgresName  = "postgres"
	zookeeperName = "zookeeper"
	etcdName      = "etcd"
)

// engine is a Store that several servers share.
type engine interface {
	replica.Store
	events.Channel
	// Young reports whether an empty store has never contained anything.
	Young() bool
	// Place returns the store's address, without credentials.
	Place() string
	Close() error
}

// openEngine opens the node of FENCELOCK_STORE: a single node whose store is replicated and shared by
// several servers. An engine implements only replica.Store; the scheme of the URL selects it.
func (b *Backend) openEngine(ctx context.Context) (node *replica.Node, err error) {
	timeout := max(b.cfg.NodeTimeout, time.Second)
	credentials := b.login("FENCELOCK_STORE", b.cfg.Store)
	var (
		store engine
		name  string
	)
	switch {
	case strings.HasPrefix(b.cfg.Store, zkstore.Scheme):
		name, b.Mode = zookeeperName, "one ZooKeeper ensemble"
		store, err = opened(zkstore.Open(ctx, b.cfg.Store, zkstore.Options{Timeout: timeout, Logger: b.opts.Logger, Credentials: credentials}))
	case etcdstore.Is(b.cfg.Store):
		name, b.Mode = etcdName, "one etcd"
		store, err = opened(etcdstore.Open(ctx, b.cfg.Store, etcdstore.Options{Timeout: timeout, Logger: b.opts.Logger, Credentials: credentials}))
	default:
		name, b.Mode = postgresName, "one Postgres"
		store, err = opened(pgstore.Open(ctx, b.cfg.Store, pgstore.Options{Timeout: timeout, Credentials: credentials}))
	}
	if err == nil {
		b.closers = append(b.closers, store.Close)
		b.channels = append(b.channels, store)
		b.Mode += ", which several servers may share: the locks are in " + store.Place()
		node, err = b.openReplica(ctx, name, store, replica.Options{Bootstrap: b.opts.Tool == nil && store.Young(), Timeout: timeout})
	}
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

// opened returns a nil engine after an error, instead of an interface that contains a nil pointer.
func opened[E engine](store E, err error) (engine, error) {
	if err != nil {
		return nil, err
	}
	return store, nil
}
