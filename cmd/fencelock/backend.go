package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/boltfile"
	"github.com/fencelock/fencelock/storage/boltguard"
	"github.com/fencelock/fencelock/storage/boltstore"
	"github.com/fencelock/fencelock/storage/pgguard"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// fileLockTimeout is how long another server may keep the embedded file, so
// that a restart does not fail for coming a moment too soon.
const fileLockTimeout = time.Second

// fileCheckTime bounds the check of the embedded file at the start. It is
// enough for gigabytes on most disks.
const fileCheckTime = 10 * time.Second

// markTimeout bounds reading the guard's highest mark at the start.
const markTimeout = 2 * time.Second

// batchTimeouts is how many times as long as a request a batch of requests
// waits for a node (redisnode.Options.Timeout says why).
const batchTimeouts = 4

// backend is what the service stands on.
type backend struct {
	locker *redlock.Locker
	guard  fencing.Guard  // nil for none
	file   *boltfile.File // nil for none
	events *events.Hub
	// channels are where the servers of the cluster tell each other what happens.
	channels []events.Channel
	mode     string   // in a few words, for people
	notes    []string // what the operator should know
	closers  []func() error

	audit   *slog.Logger // of what is done to nodes
	metrics *nodeMetrics
	traces  *tracing
	// leaseKeys are the configured ones; nil for those of the cluster's own secret.
	leaseKeys func() *redlock.Keys
	redis     []*redisnode.Node
	queues    []queued
}

// openBackend opens what the configuration names. After an error nothing stays open.
func openBackend(ctx context.Context, cfg config, leaseKeys func() *redlock.Keys, logger, audit *slog.Logger, registry prometheus.Registerer, traces *tracing) (*backend, error) {
	b := newBackend(registry)
	b.audit = audit.With(slog.String("identity", "server"))
	b.traces, b.leaseKeys = traces, leaseKeys
	if err := b.open(ctx, cfg, logger); err != nil {
		return nil, errors.Join(err, b.close())
	}
	if guard, ok := b.guard.(*pgguard.Guard); ok {
		registry.MustRegister(newGuardRefusals(guard))
	}
	return b, nil
}

func newBackend(registry prometheus.Registerer) *backend {
	return &backend{events: events.NewHub(), metrics: newNodeMetrics(registry)}
}

func (b *backend) open(ctx context.Context, cfg config, logger *slog.Logger) error {
	file, err := b.openFile(cfg)
	if err != nil {
		return err
	}
	if err := b.openGuard(ctx, cfg, file); err != nil {
		return err
	}
	sets, err := b.openNodes(ctx, cfg, file, logger)
	if err != nil {
		return err
	}
	b.channels = channelsOf(sets)
	b.locker, err = redlock.New(b.lockerConfig(cfg, logger), sets...)
	return err
}

// watchLeaks searches the Redis nodes for locks without an expiry, until ctx ends.
func (b *backend) watchLeaks(ctx context.Context) {
	var wg sync.WaitGroup
	for _, node := range b.redis {
		wg.Go(func() { node.WatchLeaks(ctx, redisnode.Leaks{}) })
	}
	wg.Wait()
}

// close closes in the reverse order of opening.
func (b *backend) close() error {
	var errs []error
	for len(b.closers) > 0 {
		last := len(b.closers) - 1
		errs = append(errs, b.closers[last]())
		b.closers = b.closers[:last]
	}
	return errors.Join(errs...)
}

func (b *backend) note(text string) { b.notes = append(b.notes, text) }

func (b *backend) lockerConfig(cfg config, logger *slog.Logger) redlock.Config {
	c := redlock.Config{
		DefaultTTL:  cfg.defaultTTL,
		MaxTTL:      cfg.maxTTL,
		MaxHold:     cfg.maxHold,
		NodeTimeout: cfg.nodeTimeout,
		MaxWaiters:  cfg.maxWaiters,
		Recovery:    cfg.recovery,
		New:         cfg.bootstrap,
		Released:    b.events.Released,
		Logger:      logger,
		Audit:       b.audit,
		Keys:        b.leaseKeys,
		Meters:      b.metrics.ofVotes,
	}
	b.traces.traceVotes(&c)
	if b.guard != nil {
		c.Floor = b.guard.HighestMark
	}
	return c
}

// openFile opens the embedded file if anything is to be kept in it.
func (b *backend) openFile(cfg config) (*boltfile.File, error) {
	if cfg.data == "" || len(cfg.redisSets) > 0 && cfg.databaseURL != "" {
		return nil, nil //nolint:nilnil // no file is a configuration, not a failure
	}
	file, err := boltfile.Open(cfg.data, boltfile.Options{Timeout: fileLockTimeout, CheckTime: fileCheckTime})
	if errors.Is(err, boltfile.ErrInUse) {
		return nil, fmt.Errorf("%w: one server at a time may have it. Stop the other one, or give this one a file of its own with FENCELOCK_DATA", err)
	}
	if err != nil {
		return nil, fmt.Errorf("the embedded file (FENCELOCK_DATA): %w", err)
	}
	if file.Checked() < 1 {
		b.note(fmt.Sprintf("%s is large: %.0f%% of it were checked for damage in %v, the rest is checked as it is used", file.Path(), 100*file.Checked(), fileCheckTime))
	}
	b.file = file
	b.closers = append(b.closers, file.Close)
	return file, nil
}

// watchFile returns why when the embedded file must not be used any more.
func (b *backend) watchFile(ctx context.Context) error {
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

func (b *backend) openGuard(ctx context.Context, cfg config, file *boltfile.File) error {
	switch {
	case cfg.databaseURL != "":
		guard, err := pgguard.Open(ctx, cfg.databaseURL, pgguard.Options{})
		if err != nil {
			return fmt.Errorf("FENCELOCK_DATABASE_URL: %w", err)
		}
		b.guard = guard
		b.closers = append(b.closers, guard.Close)
	case file != nil:
		guard, err := boltguard.New(file)
		if err != nil {
			return fmt.Errorf("the embedded file (FENCELOCK_DATA) %s: %w", file.Path(), err)
		}
		b.guard = guard
		b.closers = append(b.closers, guard.Close)
		if len(cfg.redisSets) > 0 {
			b.note("guarded records are kept in " + file.Path() + ", which guards the writes through this server only; set FENCELOCK_DATABASE_URL to share them")
		}
	}
	return nil
}

func (b *backend) openNodes(ctx context.Context, cfg config, file *boltfile.File, logger *slog.Logger) ([][]node.Node, error) {
	if len(cfg.redisSets) == 0 {
		b.mode = "single node, durable, no high availability: the locks are in " + file.Path()
		embedded, err := b.openEmbedded(ctx, cfg, file, logger)
		if err != nil {
			return nil, fmt.Errorf("the embedded file (FENCELOCK_DATA) %s: %w", file.Path(), err)
		}
		return [][]node.Node{{embedded}}, nil
	}
	b.mode = redisMode(cfg.redisSets)
	var sets [][]node.Node
	for i, urls := range cfg.redisSets {
		nodes, err := b.openRedis(urls, redisnode.Options{Timeout: batchTimeouts * cfg.nodeTimeout, CounterTTL: cfg.counterTTL, Logger: logger})
		if err != nil {
			return nil, fmt.Errorf("FENCELOCK_REDIS_ADDRS, set %d: %w", i+1, err)
		}
		sets = append(sets, nodes)
	}
	return sets, nil
}

// embeddedName is the same for every file, since the admission record is bound to
// it and a file may be moved.
const embeddedName = "embedded"

func (b *backend) openEmbedded(ctx context.Context, cfg config, file *boltfile.File, logger *slog.Logger) (node.Node, error) {
	store, err := boltstore.New(file, boltstore.Options{})
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, store.Close)
	node, err := replica.New(ctx, embeddedName, store, replica.Options{
		Rules: replica.Rules{CounterTTL: cfg.counterTTL}, Bootstrap: true, Sole: true,
		Floor: b.highestMark(ctx), Logger: logger, Meter: b.metrics.ofBatches(embeddedName),
	})
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, node.Close)
	b.queues = append(b.queues, node)
	return node, nil
}

func redisMode(sets [][]string) string {
	var quorums []string
	for _, urls := range sets {
		quorums = append(quorums, fmt.Sprintf("quorum of %d of %d Redis nodes", quorum.Of(len(urls)), len(urls)))
	}
	return strings.Join(quorums, ", ")
}

func (b *backend) openRedis(urls []string, opts redisnode.Options) (nodes []node.Node, err error) {
	for i, url := range urls {
		opts.Meters = func(node string) redisnode.Meter { return b.metrics.ofBatches(node) }
		node, err := redisnode.Open(url, opts)
		if err != nil {
			return nil, fmt.Errorf("address %d: %w", i+1, err)
		}
		b.closers = append(b.closers, node.Close)
		b.redis, b.queues = append(b.redis, node), append(b.queues, node)
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// highestMark is what the embedded node's tokens must start above: the guard
// may have seen those of a file that is gone. 0 if it cannot be read now; the
// node then starts above Unix time, which is as good unless a clock was set back.
func (b *backend) highestMark(ctx context.Context) fencing.Token {
	if b.guard == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	mark, err := b.guard.HighestMark(ctx)
	if err != nil {
		b.note("the guard's highest mark cannot be read: " + err.Error())
		return 0
	}
	return mark
}
