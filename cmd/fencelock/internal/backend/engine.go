package backend

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/etcdstore"
	"github.com/fencelock/fencelock/storage/pgstore"
	"github.com/fencelock/fencelock/storage/zkstore"
)

// The nodes' names are the same for every database and ensemble, since the admission
// record is bound to them and a database may move.
const (
	postgresName  = "postgres"
	zookeeperName = "zookeeper"
	etcdName      = "etcd"
)

// engine is a Store that several servers share.
type engine interface {
	replica.Store
	events.Channel
	// Young tells that a store that holds nothing never held anything.
	Young() bool
	// Place names where it is, without credentials.
	Place() string
	Close() error
}

// openEngine opens the node of FENCELOCK_STORE: a single node whose store is replicated,
// and which several servers share. An engine brings a replica.Store and nothing else; it
// is chosen by the scheme of the URL.
func (b *Backend) openEngine(ctx context.Context) (node *replica.Node, err error) {
	timeout := max(b.cfg.NodeTimeout, time.Second)
	var (
		store engine
		name  string
	)
	switch {
	case strings.HasPrefix(b.cfg.Store, zkstore.Scheme):
		name, b.Mode = zookeeperName, "one ZooKeeper ensemble"
		store, err = opened(zkstore.Open(ctx, b.cfg.Store, zkstore.Options{Timeout: timeout, Logger: b.opts.Logger}))
	case etcdstore.Is(b.cfg.Store):
		name, b.Mode = etcdName, "one etcd"
		store, err = opened(etcdstore.Open(ctx, b.cfg.Store, etcdstore.Options{Timeout: timeout, Logger: b.opts.Logger}))
	default:
		name, b.Mode = postgresName, "one Postgres"
		store, err = opened(pgstore.Open(ctx, b.cfg.Store, pgstore.Options{Timeout: timeout}))
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

// opened keeps a failed Open from being an engine that is not nil.
func opened[E engine](store E, err error) (engine, error) {
	if err != nil {
		return nil, err
	}
	return store, nil
}
