// Package engine is the one table of the stores that several servers may share: what FENCELOCK_STORE may name,
// how it is opened, and what is examined before.
package engine

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/etcdstore"
	"github.com/fencelock/fencelock/storage/pgstore"
	"github.com/fencelock/fencelock/storage/zkstore"
)

// Store is a replica.Store that several servers share.
type Store interface {
	replica.Store
	events.Channel
	// Young reports whether an empty store has never contained anything.
	Young() bool
	// Place returns the store's address, without credentials.
	Place() string
	Close() error
}

// Options are what every engine is opened with.
type Options struct {
	Timeout time.Duration
	Logger  *slog.Logger
	// Credentials returns the user and the password of each new connection; nil for those of the URL.
	Credentials func() (user, password string)
}

// Engine is a line of the table. The scheme of a URL selects it.
type Engine struct {
	// Name is the name of the node. It is the same for every database and ensemble, because the admission
	// record contains it, and a database may be moved.
	Name string
	Mode string // what the log says of it
	Open func(ctx context.Context, url string, opts Options) (Store, error)
	// Admits connects with a URL's user and password. It returns an error only if the store refuses them, not
	// if the store cannot be reached now.
	Admits func(ctx context.Context, url string) error
	// Look examines what a URL points to, and changes nothing. It is nil for Postgres, which may also have the
	// guarded records, and is examined with them.
	Look func(ctx context.Context, url string, limit time.Duration) Seen

	schemes []string
	example string // a URL, for messages
	meaning string // what the description of FENCELOCK_STORE says of it; "" for the example
}

// Seen is what Look found.
type Seen struct {
	Version  string // the program and its version; "" if it cannot be used
	Findings []Finding
}

// Finding is something wrong with a store, or risky.
type Finding struct {
	Wrong    bool // otherwise it is risky
	What, Do string
}

func engines() []Engine {
	return []Engine{
		{ //nolint:gosec // the password in the example is nobody's
			Name: "postgres", Mode: "one Postgres", schemes: []string{"postgres://", "postgresql://"},
			example: "postgres://user:password@host:5432/database",
			meaning: "postgres://…, with the locks in the schema fencelock, and the guarded records too unless FENCELOCK_DATABASE_URL is set",
			Open: func(ctx context.Context, url string, o Options) (Store, error) {
				return opened(pgstore.Open(ctx, url, pgstore.Options{Timeout: o.Timeout, Credentials: o.Credentials}))
			},
			Admits: pgstore.Admits,
		},
		{
			Name: "zookeeper", Mode: "one ZooKeeper ensemble", schemes: []string{zkstore.Scheme},
			example: "zookeeper://user:password@a:2181,b:2181,c:2181/path",
			Open: func(ctx context.Context, url string, o Options) (Store, error) {
				return opened(zkstore.Open(ctx, url, zkstore.Options{Timeout: o.Timeout, Logger: o.Logger, Credentials: o.Credentials}))
			},
			Admits: zkstore.Admits, Look: lookAtZooKeeper,
		},
		{
			Name: "etcd", Mode: "one etcd", schemes: []string{etcdstore.SchemePlain, etcdstore.SchemeTLS},
			example: "etcd://a:2379,b:2379,c:2379/prefix (etcds:// for TLS)",
			Open: func(ctx context.Context, url string, o Options) (Store, error) {
				return opened(etcdstore.Open(ctx, url, etcdstore.Options{Timeout: o.Timeout, Logger: o.Logger, Credentials: o.Credentials}))
			},
			Admits: etcdstore.Admits, Look: lookAtEtcd,
		},
	}
}

// Of returns the engine of a URL. It compares only the scheme, because package url rejects a URL with several
// hosts.
func Of(url string) (e Engine, known bool) {
	all := engines()
	i := slices.IndexFunc(all, func(e Engine) bool {
		return slices.ContainsFunc(e.schemes, func(scheme string) bool { return strings.HasPrefix(url, scheme) })
	})
	if i < 0 {
		return Engine{}, false
	}
	return all[i], true
}

// Examples returns a URL of each engine, for messages.
func Examples() string {
	var examples []string
	for _, e := range engines() {
		examples = append(examples, e.example)
	}
	return strings.Join(examples, ", or ")
}

// Meanings describes the engines, for the description of FENCELOCK_STORE.
func Meanings() string {
	var meanings []string
	for _, e := range engines() {
		meanings = append(meanings, cmp.Or(e.meaning, e.example))
	}
	last := len(meanings) - 1
	return strings.Join(meanings[:last], "; ") + "; or " + meanings[last]
}

// opened returns a nil Store after an error, instead of an interface that contains a nil pointer.
func opened[S Store](store S, err error) (Store, error) {
	if err != nil {
		return nil, err
	}
	return store, nil
}
