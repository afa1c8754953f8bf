package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// drainTimeout bounds how long a stopping server lets requests finish. What
// the Locker and the storages need afterwards has to fit into 30 s with it.
const drainTimeout = 20 * time.Second

// idleTimeout is how long a connection may be kept between two requests.
const idleTimeout = 2 * time.Minute

// headerTimeout is for a request's header to arrive.
const headerTimeout = 10 * time.Second

func serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the lock service",
		Long: `Run the lock service. Without any configuration it keeps a single durable lock
node and the guarded records in one file, and listens on 127.0.0.1:8080.

It stops on SIGTERM or SIGINT: it accepts nothing more, finishes what runs, and
exits with 0. A second signal ends it at once.

` + variablesHelp(),
		Example: "  fencelock serve\n  FENCELOCK_REDIS_ADDRS=r1:6379,r2:6379,r3:6379 fencelock serve",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig()
			if err != nil {
				return usageError{err}
			}
			logger := newLogger(cfg, cmd.ErrOrStderr())
			redisnode.LogLibrary(logger)
			return serve(cmd.Context(), cfg, cmd.OutOrStdout(), logger, newAudit(cfg, cmd.ErrOrStderr()))
		},
	}
}

// serve runs the service until ctx ends, and then drains it.
func serve(ctx context.Context, cfg config, stdout io.Writer, logger, audit *slog.Logger) (err error) {
	security, err := openSecurity(cfg)
	if err != nil {
		return usageError{err}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	traces, err := openTracing(ctx, cfg, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, traces.close(ctx)) }()
	b, err := openBackend(ctx, cfg, security.leases.get(), logger, audit, registry, traces)
	if err != nil {
		return err
	}
	registry.MustRegister(newClusterCollector(b.locker, b.queues, cfg.maxWaiters), buildInfo())
	security.measure(registry)
	s := &service{logger: logger, audit: audit, backend: b, security: security, tracer: traces.tracer()}
	err = s.listen(ctx, cfg)
	if err == nil {
		s.handlers(cfg, registry)
		s.announce(cfg, stdout)
		err = s.run(ctx)
	}
	return errors.Join(err, s.close(), b.close())
}

// service is a running server.
type service struct {
	logger, audit *slog.Logger
	backend       *backend
	security      *security
	tracer        trace.Tracer // nil for none
	publicSocket  net.Listener
	adminSocket   net.Listener
	handler       *api.Server
	public, admin *http.Server
}

func (s *service) listen(ctx context.Context, cfg config) (err error) {
	socket, err := listen(ctx, "FENCELOCK_LISTEN", cfg.listen)
	if err != nil {
		return err
	}
	s.publicSocket = api.NewListener(socket, s.security.tls(), headerTimeout, s.logger)
	socket, err = listen(ctx, "FENCELOCK_ADMIN_LISTEN", cfg.adminListen)
	if err != nil {
		return err
	}
	config := s.security.tls()
	if cfg.openAdmin {
		config = nil
	}
	s.adminSocket = api.NewListener(socket, config, headerTimeout, s.logger)
	return nil
}

func listen(ctx context.Context, variable, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s=%s: %w", variable, address, err)
	}
	return l, nil
}

// close frees what run did not get to serve.
func (s *service) close() error {
	var errs []error
	var open []net.Listener
	if s.publicSocket != nil {
		open = append(open, s.publicSocket)
	}
	if s.adminSocket != nil {
		open = append(open, s.adminSocket)
	}
	for _, l := range open {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (s *service) handlers(cfg config, registry *prometheus.Registry) {
	s.handler = api.New(api.Options{
		Service: s.backend.locker,
		Guard:   s.backend.guard,
		Events:  s.backend.events,
		Access:  s.security.keeper,
		Hosts:   s.security.hosts(cfg),
		Audit:   s.audit,
		Console: cfg.console,
		Proofs:  s.security.proofs.get(),
		MaxTTL:  cfg.maxTTL,
		OpenAPI: []byte(fencelock.OpenAPI),
		Logger:  s.logger,
		Metrics: registry,
		Tracer:  s.tracer,

		MetricsPrefixes: cfg.metricsPrefixes,
		ProofRequired:   cfg.proofRequired,
	})
	s.public = s.httpServer(s.handler)
	admin := api.NewAdmin(registry)
	if cfg.openAdmin {
		admin = s.handler.OnlyHosts(api.Hosts{Listen: cfg.adminListen, Names: cfg.allowedHosts}, admin)
	} else {
		admin = s.handler.AuthorizeAdmin(admin)
	}
	s.admin = s.httpServer(admin)
}

// httpServer bounds what a connection may cost. There is no ReadTimeout: it
// would end a request that waits in the queue, so api limits bodies by itself.
func (s *service) httpServer(h http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           h,
		ConnContext:       api.ConnContext,
		Protocols:         protocols,
		ReadHeaderTimeout: headerTimeout,
		HTTP2: &http.HTTP2Config{
			// A client in the middle of a header cannot answer a ping, so the header's
			// limit holds here, too.
			SendPingTimeout:  headerTimeout / 2,
			PingTimeout:      headerTimeout / 2,
			WriteByteTimeout: headerTimeout,
		},
		WriteTimeout:   lockcore.MaxWait + time.Minute,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: 32 << 10,
		ErrorLog:       slog.NewLogLogger(s.logger.Handler(), slog.LevelDebug),
	}
}

// announce writes the log's first line, and for who tries it out what to paste.
func (s *service) announce(cfg config, stdout io.Writer) {
	s.logger.Info("listening",
		slog.String("addr", s.publicSocket.Addr().String()),
		slog.String("admin_addr", s.adminSocket.Addr().String()),
		slog.String("mode", s.backend.mode),
		slog.String("access", s.security.describe()),
		slog.String("version", version()))
	for _, v := range misspeltVariables() {
		s.logger.Warn("unknown variable, ignored", slog.String("variable", v.name), slog.String("closest", v.closest))
	}
	for _, note := range append(s.backend.notes, s.security.notes(cfg)...) {
		s.logger.Warn("note", slog.String("note", note))
	}
	if len(cfg.redisSets) == 0 {
		// Whoever reads the log must not miss it because this is lost.
		_, _ = io.WriteString(stdout, banner(s.publicSocket.Addr(), s.adminSocket.Addr(), s.backend.mode, cfg, s.security))
	}
}

// run serves until ctx ends or a part fails, then stops the parts in order:
// requests first, then the Locker, which they need.
func (s *service) run(ctx context.Context) error {
	lockerCtx, stopLocker := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLocker()
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return unlessClosed(s.public.Serve(s.publicSocket)) })
	parts.Go(func() error { return unlessClosed(s.admin.Serve(s.adminSocket)) })
	parts.Go(func() error { s.security.watch(ctx, s.logger); return nil })
	parts.Go(func() error { return unlessStopped(lockerCtx, s.backend.locker.Run(lockerCtx)) })
	parts.Go(func() error { s.handler.Run(lockerCtx); return nil })
	parts.Go(func() error { s.backend.watchLeaks(lockerCtx); return nil })
	parts.Go(func() error { return s.backend.watchFile(ctx) })
	s.backend.runEvents(lockerCtx, parts)
	parts.Go(func() error {
		<-ctx.Done()
		defer stopLocker()
		return s.drain(context.WithoutCancel(ctx))
	})
	err := parts.Wait()
	s.logger.Info("stopped")
	return err
}

// drain stops accepting, lets the running requests finish within
// drainTimeout, and cuts those off that have not.
func (s *service) drain(ctx context.Context) error {
	s.logger.Info("stopping: no new requests, those under way may finish")
	s.backend.locker.StopWaiting() // they might wait for minutes
	s.backend.events.Stop()        // and these for ever
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	err := s.public.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.logger.Warn("requests did not finish in time and are cut off", slog.Duration("limit", drainTimeout))
		err = s.public.Close()
	}
	return errors.Join(err, s.admin.Close())
}

func unlessClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// unlessStopped passes an error on, unless it only says that ctx has ended.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}
