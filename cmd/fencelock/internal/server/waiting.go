package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/backend"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore"
)

const (
	storePause  = time.Second // between two tries of a store that does not respond
	storeRemind = time.Minute // between two log lines about it
)

// openBackend opens the backend. While its store does not respond, it tries again, and the server runs
// but is not ready and reports what it waits for. If the process ended instead, it would be restarted
// ever more rarely. The registry has the metrics of the opened backend.
func (s *service) openBackend(ctx context.Context) (registry *prometheus.Registry, err error) {
	var waiting *waitingServer
	defer func() { err = errors.Join(err, waiting.end()) }()
	for {
		registry = s.newRegistry()
		s.backend, err = backend.Open(ctx, s.cfg, backend.Options{
			Logger: s.logger, Audit: s.audit.With(slog.String("identity", "server")), Registry: registry,
			LeaseKeys: s.security.leases.get(), Traced: s.tracer != nil,
		})
		if !backend.Unreached(err) || ctx.Err() != nil {
			return registry, err
		}
		why := err
		if waiting == nil {
			if waiting, err = s.startWaiting(ctx, why); err != nil {
				return nil, err
			}
		}
		waiting.log(why)
		if !pause.For(ctx, storePause) {
			return nil, ctx.Err()
		}
	}
}

func (s *service) newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo())
	s.security.measure(registry)
	return registry
}

// waitingServer is the server until its store responds.
type waitingServer struct {
	*service
	parts    errgroup.Group
	reminded time.Time
}

// startWaiting opens the sockets of a server without a store. They are closed before the service opens
// its own sockets.
func (s *service) startWaiting(ctx context.Context, why error) (*waitingServer, error) {
	w := &waitingServer{service: &service{cfg: s.cfg, logger: s.logger, audit: s.audit, security: s.security}}
	if err := w.listen(ctx); err != nil {
		return nil, err
	}
	registry := w.newRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fencelock_ready", Help: "1 while a quorum of nodes may vote.",
	}, func() float64 { return 0 }))
	w.handle(registry, noStore{why, s.cfg}, noGuard{}, events.NewHub())
	w.logListening("without its store, which does not respond")
	w.parts.Go(func() error { return unlessClosed(w.public.Serve(w.publicSocket)) })
	w.parts.Go(func() error { return unlessClosed(w.admin.Serve(w.adminSocket)) })
	return w, nil
}

func (w *waitingServer) log(why error) {
	if time.Since(w.reminded) < storeRemind {
		return
	}
	w.reminded = time.Now()
	w.logger.Warn("the store does not respond: nothing is granted until it does, and the server keeps trying", slog.Any("error", why))
}

// end closes the sockets. It accepts a nil server.
func (w *waitingServer) end() error {
	if w == nil {
		return nil
	}
	return errors.Join(w.public.Close(), w.admin.Close(), w.parts.Wait())
}

// noStore is a lockcore.Service for a store that has not responded yet.
type noStore struct {
	why error
	cfg config.Config
}

func (noStore) refusal() error {
	return &lockcore.QuorumError{Quorum: 1, RetryAfter: storePause, Nodes: []lockcore.NodeOutcome{{Node: "store", Reason: "unreachable"}}}
}

// Limits returns the service's limits, so that a valid request is refused only because of the store.
func (n noStore) Limits() lockcore.Limits {
	return lockcore.Limits{DefaultTTL: n.cfg.DefaultTTL, MinTTL: n.cfg.MinTTL(), MaxTTL: n.cfg.MaxTTL}.WithDefaults()
}

func (n noStore) Acquire(context.Context, lockcore.Request) (lease lockcore.Lease, err error) {
	return lease, n.refusal()
}

func (n noStore) Cancel(context.Context, lockcore.Request) ([]lockcore.LeasePart, error) {
	return nil, n.refusal()
}

func (n noStore) ForgetPlace(context.Context, lockcore.Request) error { return n.refusal() }

func (n noStore) Find(context.Context, lockcore.Request) (lease lockcore.Lease, err error) {
	return lease, n.refusal()
}

func (n noStore) Open(context.Context, lockcore.Caller, string) (lockcore.OpenedLease, error) {
	return nil, n.refusal()
}

func (n noStore) Inspect(context.Context, string) (state lockcore.LockState, err error) {
	return state, n.refusal()
}

func (n noStore) List(context.Context, lockcore.ListRequest) (page lockcore.LockPage, err error) {
	return page, n.refusal()
}

func (n noStore) Break(context.Context, string, fencing.Token) error { return n.refusal() }

func (n noStore) Observe(context.Context) lockcore.ClusterStatus { return n.Status() }

func (n noStore) Status() lockcore.ClusterStatus {
	return lockcore.ClusterStatus{Quorum: 1, Reason: "the store has not responded since the start: " + n.why.Error()}
}

// noGuard is the guard of a server whose store has not responded yet.
type noGuard struct{}

func (noGuard) Claim(context.Context, string, fencing.Token) (r fencing.Record, err error) {
	return r, fencing.ErrGuardUnavailable
}

func (noGuard) Write(context.Context, string, fencing.Token, json.RawMessage) (r fencing.Record, err error) {
	return r, fencing.ErrGuardUnavailable
}

func (noGuard) Delete(context.Context, string, fencing.Token) (r fencing.Record, err error) {
	return r, fencing.ErrGuardUnavailable
}

func (noGuard) Read(context.Context, string) (r fencing.Record, err error) {
	return r, fencing.ErrGuardUnavailable
}

func (noGuard) Records(context.Context, string, string, int) ([]fencing.Record, error) {
	return nil, fencing.ErrGuardUnavailable
}

func (noGuard) History(context.Context, string, int) ([]fencing.Attempt, error) {
	return nil, fencing.ErrGuardUnavailable
}

func (noGuard) HighestMark(context.Context) (fencing.Token, error) {
	return 0, fencing.ErrGuardUnavailable
}

func (noGuard) Usage(context.Context) (u fencing.Usage, err error) {
	return u, fencing.ErrGuardUnavailable
}
