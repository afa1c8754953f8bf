// Package backend opens what a server uses: lock nodes, guarded records, and the exchange of events
// between servers, as configured.
package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
	"github.com/fencelock/fencelock/lockcore/redlock/settings"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/sets"
	"github.com/fencelock/fencelock/storage/boltfile"
	"github.com/fencelock/fencelock/storage/boltguard"
	"github.com/fencelock/fencelock/storage/boltstore"
	"github.com/fencelock/fencelock/storage/mysqlguard"
	"github.com/fencelock/fencelock/storage/pgguard"
	"github.com/fencelock/fencelock/storage/redisnode"
)

const (
	fileLockTimeout = time.Second      // how long the previous server may take to release the embedded file
	fileCheckTime   = 10 * time.Second // how long the check of the embedded file may take: enough for gigabytes on most disks
	markTimeout     = 2 * time.Second  // how long reading the guard's highest mark at the start may take
)

// embeddedName is the same for every file, because the admission record contains the name, and the file
// may be moved.
const embeddedName = "embedded"

// Options are a Backend's settings that are not part of the configuration.
type Options struct {
	Logger, Audit *slog.Logger // Audit gets acts on nodes
	Registry      prometheus.Registerer
	// LeaseKeys returns the keys of FENCELOCK_LEASE_KEY_FILE; nil means the cluster's own secret.
	LeaseKeys func() *keyring.Ring
	// Traced adds the nodes' votes to the spans of requests.
	Traced bool
	// Tool is set by commands that run a Locker for a while. It changes the Locker's configuration. A
	// running server may have the file of the guarded records open at the same time.
	Tool func(*sets.Config)
}

// Backend has everything that a server is built on.
type Backend struct {
	Locker *sets.Locker
	Guard  fencing.Guard // nil if there is none
	Events *events.Hub
	Mode   string   // a short description for the operator
	Notes  []string // messages for the operator

	opts     Options
	cfg      config.Config
	metrics  *nodeMetrics
	file     *boltfile.File // nil without an embedded file
	channels []events.Channel
	redis    []*redisnode.Node
	next     [][]node.Node // the nodes of FENCELOCK_REDIS_NEXT_ADDRS
	closers  []func() error

	logins   map[string]*login // by variable and place; not changed after Open
	changing sync.Mutex        // held by UseLogins
}

// Open opens everything that is configured. After an error nothing stays open.
func Open(ctx context.Context, cfg config.Config, opts Options) (*Backend, error) {
	b := &Backend{Events: events.NewHub(), opts: opts, cfg: cfg, metrics: newNodeMetrics(opts.Registry, opts.Logger)}
	if err := b.open(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Backend) open(ctx context.Context) error {
	if err := b.openFile(); err != nil {
		return err
	}
	if err := b.openGuard(ctx); err != nil {
		return err
	}
	present, queues, err := b.openNodes(ctx)
	if err != nil {
		return err
	}
	// Servers exchange messages over as many nodes of the first set as are needed so that one of them is
	// up whenever the set has a quorum, or over the engine's store. The embedded node has only one
	// server, and needs no channel.
	for _, n := range present[0][:quorum.Readers(len(present[0]))] {
		if c, ok := n.(events.Channel); ok {
			b.channels = append(b.channels, c)
		}
	}
	if b.Locker, err = sets.New(b.lockerConfig(), present...); err != nil {
		return err
	}
	b.opts.Registry.MustRegister(&clusterCollector{sets: b.Locker, queues: queues, maxWaiters: b.cfg.MaxWaiters})
	return nil
}

// secrets are this server's secrets and the configured lease keys; leaseKeys is nil if none are
// configured.
type secrets struct {
	events.Seals
	leaseKeys func() *keyring.Ring
}

// LeaseKey implements events.Keys.
func (s secrets) LeaseKey() string {
	if s.leaseKeys == nil {
		return ""
	}
	return s.leaseKeys().Name()
}

// OpensLeaseKey implements events.Keys.
func (s secrets) OpensLeaseKey(name string) bool {
	return s.leaseKeys != nil && s.leaseKeys().Knows(name)
}

// Start runs the background work of the nodes and the events until ctx ends.
func (b *Backend) Start(ctx context.Context, parts *errgroup.Group) {
	relay := events.NewRelay(b.Events, b.channels, secrets{b.Locker, b.opts.LeaseKeys}, b.opts.Logger)
	b.opts.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fencelock_lease_keys_differ",
		Help: "Other servers whose lease ids get 404 here, because their FENCELOCK_LEASE_KEY_FILE differs.",
	}, func() float64 { return float64(relay.LeaseKeysDiffer()) }))
	for _, run := range []func(context.Context) error{
		b.Locker.Run,
		b.Events.Run,
		func(ctx context.Context) error { return b.Events.WatchNodes(ctx, b.Locker.Status) },
		relay.Run,
		b.watchFile,
	} {
		parts.Go(func() error {
			err := run(ctx)
			if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				return nil
			}
			return err
		})
	}
	for _, node := range b.redis {
		parts.Go(func() error { node.WatchLeaks(ctx, redisnode.Leaks{}); return nil })
	}
}

// Close closes in the reverse order of opening.
func (b *Backend) Close() error {
	var errs []error
	for ; len(b.closers) > 0; b.closers = b.closers[:len(b.closers)-1] {
		errs = append(errs, b.closers[len(b.closers)-1]())
	}
	return errors.Join(errs...)
}

func (b *Backend) notef(format string, values ...any) {
	b.Notes = append(b.Notes, fmt.Sprintf(format, values...))
}

func (b *Backend) lockerConfig() sets.Config {
	c := sets.Config{
		DefaultTTL:  b.cfg.DefaultTTL,
		MinTTL:      b.cfg.MinTTL(),
		MaxTTL:      b.cfg.MaxTTL,
		MaxHold:     b.cfg.MaxHold,
		NodeTimeout: b.cfg.NodeTimeout,
		Recovery:    settings.Recovery(b.cfg.Recovery),
		New:         b.cfg.Bootstrap == "new",
		Logger:      b.opts.Logger,
		Audit:       b.opts.Audit,
		Keys:        b.opts.LeaseKeys,
		Meters:      b.metrics.ofVotes,
		Violated:    b.metrics.invariants.violated,
		Next:        b.next,
		Tool:        b.opts.Tool != nil,
		Unlisted:    len(b.cfg.RedisSets) == 0,
	}
	if b.cfg.RedisAddrs != "" {
		c.NodeDownAfter = b.cfg.NodeDownAfter
	}
	if b.opts.Traced {
		c.Traced = func(ctx context.Context) bool { return trace.SpanFromContext(ctx).IsRecording() }
		c.Trace = traceVotes
	}
	if b.Guard != nil {
		c.Floor = b.Guard.HighestMark
	}
	if b.opts.Tool != nil {
		b.opts.Tool(&c)
	}
	return c
}

// openFile opens the embedded file if the configuration keeps anything in it.
func (b *Backend) openFile() error {
	if b.cfg.Data == "" || len(b.cfg.RedisSets) > 0 && b.cfg.DatabaseURL != "" {
		return nil
	}
	file, err := boltfile.Open(b.cfg.Data, boltfile.Options{Timeout: fileLockTimeout, CheckTime: fileCheckTime})
	switch {
	case err != nil && b.opts.Tool != nil && len(b.cfg.RedisSets) > 0:
		// Tokens begin above the clock, which is just as good unless the clock was set back.
		b.notef("the guard's highest mark could not be read, so tokens begin at the clock: %v", err)
		return nil
	case errors.Is(err, boltfile.ErrInUse):
		return fmt.Errorf("%w: only one server at a time can use it. Stop the other one, or give this one its own file with FENCELOCK_DATA", err)
	case err != nil:
		return fmt.Errorf("the embedded file (FENCELOCK_DATA): %w", err)
	}
	if file.Checked() < 1 {
		b.notef("%s is large: %.0f%% of it was checked for damage in %v, and the rest is checked as it is used", file.Path(), 100*file.Checked(), fileCheckTime)
	}
	b.file = file
	b.closers = append(b.closers, file.Close)
	return nil
}

// watchFile returns an error as soon as the embedded file must not be used any more.
func (b *Backend) watchFile(ctx context.Context) error {
	if b.file == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-b.file.Damaged():
		return fmt.Errorf("the embedded file (FENCELOCK_DATA): %w", b.file.Err())
	}
}

func (b *Backend) openGuard(ctx context.Context) error {
	switch {
	case mysqlguard.IsURL(b.cfg.DatabaseURL):
		guard, err := mysqlguard.Open(b.cfg.DatabaseURL, mysqlguard.Options{Credentials: b.login("FENCELOCK_DATABASE_URL", b.cfg.DatabaseURL)})
		if err != nil {
			return fmt.Errorf("FENCELOCK_DATABASE_URL: %w", err)
		}
		b.Guard = guard
		b.closers = append(b.closers, guard.Close)
	case b.cfg.DatabaseURL != "":
		guard, err := pgguard.Open(ctx, b.cfg.DatabaseURL, pgguard.Options{Credentials: b.login("FENCELOCK_DATABASE_URL", b.cfg.DatabaseURL)})
		if err != nil {
			return fmt.Errorf("FENCELOCK_DATABASE_URL: %w", err)
		}
		b.Guard = guard
		b.closers = append(b.closers, guard.Close)
	case b.file != nil:
		guard, err := boltguard.New(b.file)
		if err != nil {
			return fmt.Errorf("the embedded file (FENCELOCK_DATA) %s: %w", b.file.Path(), err)
		}
		b.Guard = guard
		b.closers = append(b.closers, guard.Close)
		if len(b.cfg.RedisSets) > 0 {
			b.notef("guarded records are kept in %s, which guards the writes through this server only; set FENCELOCK_DATABASE_URL to share them", b.file.Path())
		}
	}
	return nil
}

func (b *Backend) openNodes(ctx context.Context) (present [][]node.Node, queues []queued, err error) {
	if b.cfg.Store != "" {
		engine, err := b.openEngine(ctx)
		if err != nil {
			return nil, nil, err
		}
		return [][]node.Node{{engine}}, []queued{engine}, nil
	}
	if len(b.cfg.RedisSets) == 0 {
		b.Mode = "single node, durable, no high availability: the locks are in " + b.file.Path()
		embedded, err := b.openEmbedded(ctx)
		if err != nil {
			return nil, nil, fmt.Errorf("the embedded file (FENCELOCK_DATA) %s: %w", b.file.Path(), err)
		}
		return [][]node.Node{{embedded}}, []queued{embedded}, nil
	}
	var quorums []string
	for _, urls := range b.cfg.RedisSets {
		quorums = append(quorums, fmt.Sprintf("quorum of %d of %d Redis nodes", quorum.Of(len(urls)), len(urls)))
	}
	b.Mode = strings.Join(quorums, ", ")
	if present, err = b.openSets("FENCELOCK_REDIS_ADDRS", b.cfg.RedisSets); err != nil {
		return nil, nil, err
	}
	if b.next, err = b.openSets("FENCELOCK_REDIS_NEXT_ADDRS", b.cfg.RedisNextSets); err != nil {
		return nil, nil, err
	}
	if b.next != nil && b.opts.Tool == nil {
		b.notef("the node sets are being changed (FENCELOCK_REDIS_NEXT_ADDRS): a set that loses its quorum's data now grants nothing until fencelock sets apply or revert")
	}
	for _, node := range b.redis {
		queues = append(queues, node)
	}
	return present, queues, nil
}

// openSets opens the nodes of a variable. It opens a node that several sets name only once.
func (b *Backend) openSets(variable string, urls [][]string) (present [][]node.Node, err error) {
	for i, set := range urls {
		var nodes []node.Node
		for j, url := range set {
			node, err := b.openRedis(url)
			if err != nil {
				return nil, fmt.Errorf("%s, set %d, address %d: %w", variable, i+1, j+1, err)
			}
			nodes = append(nodes, node)
		}
		present = append(present, nodes)
	}
	return present, nil
}

func (b *Backend) openEmbedded(ctx context.Context) (*replica.Node, error) {
	store, err := boltstore.New(b.file, boltstore.Options{})
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, store.Close)
	return b.openReplica(ctx, embeddedName, store, replica.Options{Bootstrap: true})
}

// openReplica runs a node over a store.
func (b *Backend) openReplica(ctx context.Context, name string, store replica.Store, opts replica.Options) (*replica.Node, error) {
	opts.CounterTTL, opts.Floor = b.cfg.CounterTTL, b.highestMark(ctx)
	opts.Logger, opts.Meter = b.opts.Logger, b.metrics.ofBatches(name)
	node, err := replica.New(ctx, name, store, opts)
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, node.Close)
	return node, nil
}

func (b *Backend) openRedis(url string) (*redisnode.Node, error) {
	node, err := redisnode.Open(url, redisnode.Options{
		Timeout: b.cfg.NodeDownAfter, CounterTTL: b.cfg.CounterTTL, Logger: b.opts.Logger,
		Meters:      func(node string) redisnode.Meter { return b.metrics.ofBatches(node) },
		Credentials: b.login(redisVariable, url),
	})
	if err != nil {
		return nil, err
	}
	for _, known := range b.redis {
		if known.Name() == node.Name() && b.cfg.RedisNextSets != nil { // it is in both the present and the next sets
			return known, node.Close()
		}
	}
	b.closers = append(b.closers, node.Close)
	b.redis = append(b.redis, node)
	return node, nil
}

// highestMark returns the guard's highest mark. A single node's tokens must begin above it, because the
// guard may have seen tokens from a lost file. If the mark cannot be read now, it returns 0, and the node
// begins above Unix time, which is just as good unless a clock was set back.
func (b *Backend) highestMark(ctx context.Context) fencing.Token {
	if b.Guard == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	mark, err := b.Guard.HighestMark(ctx)
	if err != nil {
		b.notef("the guard's highest mark could not be read, so tokens begin at the clock: %v", err)
		return 0
	}
	return mark
}
