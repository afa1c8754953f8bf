package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/backend"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/logging"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/version"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// DrainTimeout bounds how long a stopping server lets requests finish. What
// the Locker and the storages need afterwards has to fit into 30 s with it.
const DrainTimeout = 20 * time.Second

const (
	idleTimeout   = 2 * time.Minute  // how long a connection may be kept between two requests
	headerTimeout = 10 * time.Second // for a request's header to arrive
	maxStreams    = 100              // requests at a time over one HTTP/2 connection
)

func serveCommand(clientVariables []string) *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the lock service",
		Long: `Run the lock service. Without any configuration it keeps a single durable lock
node and the guarded records in one file, and listens on 127.0.0.1:8080.

It stops on SIGTERM or SIGINT: it accepts no new requests, finishes the
running ones, and exits with 0. A second signal ends it at once.

` + config.Help(),
		Example: "  fencelock serve\n  FENCELOCK_REDIS_ADDRS=r1:6379,r2:6379,r3:6379 fencelock serve",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load()
			if err != nil {
				return cli.UsageError{Err: err}
			}
			logger := logging.New(cfg, cmd.ErrOrStderr())
			redisnode.LogLibrary(logger)
			s := &service{cfg: cfg, logger: logger, audit: logging.NewAudit(cfg, cmd.ErrOrStderr()), clientVariables: clientVariables}
			return s.serve(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

// serve runs the service until ctx ends, and then drains it.
func (s *service) serve(ctx context.Context, stdout io.Writer) (err error) {
	if s.security, err = openSecurity(s.cfg); err != nil {
		return cli.UsageError{Err: err}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo())
	s.security.measure(registry)
	if s.cfg.Tracing == "otlp" {
		var end func() error
		if s.tracer, end, err = openTracing(ctx, s.logger); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	s.backend, err = backend.Open(ctx, s.cfg, backend.Options{
		Logger: s.logger, Audit: s.audit.With(slog.String("identity", "server")), Registry: registry,
		LeaseKeys: s.security.leases.get(), Traced: s.tracer != nil,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.backend.Close()) }()
	if guard, ok := s.backend.Guard.(countingGuard); ok {
		registry.MustRegister(newGuardRefusals(guard))
	}
	if err := s.listen(ctx); err != nil {
		return err
	}
	s.handlers(registry)
	s.announce(stdout)
	return s.run(ctx)
}

// service is a running server.
type service struct {
	cfg             config.Config
	logger, audit   *slog.Logger
	clientVariables []string // which are not misspelt ones of the server
	backend         *backend.Backend
	security        *security
	tracer          trace.Tracer // nil for none
	publicSocket    net.Listener
	adminSocket     net.Listener
	handler         *api.Server
	public, admin   *http.Server
}

// listen opens the sockets, which a failure leaves to the end of the process.
func (s *service) listen(ctx context.Context) (err error) {
	open := func(variable, address string, config *tls.Config) (net.Listener, error) {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("another program uses the port of %s=%s: set %s to a free port, or stop that program", variable, address, variable)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot listen on %s=%s: %w", variable, address, err)
		}
		return api.NewListener(l, config, headerTimeout, s.logger), nil
	}
	if s.publicSocket, err = open("FENCELOCK_LISTEN", s.cfg.Listen, s.security.tls()); err != nil {
		return err
	}
	config := s.security.tls()
	if s.cfg.OpenAdmin() {
		config = nil
	}
	s.adminSocket, err = open("FENCELOCK_ADMIN_LISTEN", s.cfg.AdminListen, config)
	return err
}

func (s *service) handlers(registry *prometheus.Registry) {
	s.handler = api.New(api.Options{
		Service:    s.backend.Locker,
		Guard:      s.backend.Guard,
		Events:     s.backend.Events,
		Access:     s.security.keeper,
		Hosts:      s.security.hosts(s.cfg),
		Audit:      s.audit,
		Console:    s.cfg.Console,
		Proofs:     s.security.proofs.get(),
		MaxWaiters: s.cfg.MaxWaiters,
		MaxRecords: fencing.Usage{Records: s.cfg.MaxRecords, Bytes: s.cfg.MaxRecordBytes},
		OpenAPI:    []byte(fencelock.OpenAPI),
		Logger:     s.logger,
		Metrics:    registry,
		Tracer:     s.tracer,

		MetricsPrefixes: s.cfg.MetricsPrefixes,
		ProofRequired:   s.cfg.ProofRequired,
	})
	s.public = s.httpServer(s.handler)
	admin := api.NewAdmin(registry)
	if s.cfg.OpenAdmin() {
		admin = s.handler.OnlyHosts(api.Hosts{Listen: s.cfg.AdminListen, Names: s.cfg.AllowedHosts}, admin)
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
			// By default a connection may have 250 streams, frames of a megabyte, and a
			// megabyte of bodies that nobody has read yet.
			MaxConcurrentStreams:          maxStreams,
			MaxReadFrameSize:              16 << 10,
			MaxReceiveBufferPerConnection: api.MaxBodyBytes,
			MaxReceiveBufferPerStream:     api.MaxBodyBytes,
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

// announce writes the log's first line and, with the embedded node, commands to try.
func (s *service) announce(stdout io.Writer) {
	id, date := version.Commit()
	s.logger.Info("listening",
		slog.String("addr", s.publicSocket.Addr().String()),
		slog.String("admin_addr", s.adminSocket.Addr().String()),
		slog.String("mode", s.backend.Mode),
		slog.String("access", s.security.describe()),
		slog.String("version", version.String()),
		slog.String("commit", id),
		slog.String("commit_date", date))
	for _, v := range config.MisspeltVariables(s.clientVariables) {
		s.logger.Warn("an unknown variable is ignored", slog.String("variable", v.Name), slog.String("closest", v.Closest))
	}
	for _, note := range append(s.backend.Notes, s.security.notes(s.cfg)...) {
		s.logger.Warn("note", slog.String("note", note))
	}
	if len(s.cfg.RedisSets) == 0 {
		// The service runs although stdout may be gone.
		_, _ = io.WriteString(stdout, banner(s.publicSocket.Addr(), s.adminSocket.Addr(), s.backend.Mode, s.cfg, s.security))
	}
}

// run serves until ctx ends or a part fails, then stops the parts in order:
// requests first, then the Locker, which they need.
func (s *service) run(ctx context.Context) error {
	backendCtx, stopBackend := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackend()
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return unlessClosed(s.public.Serve(s.publicSocket)) })
	parts.Go(func() error { return unlessClosed(s.admin.Serve(s.adminSocket)) })
	parts.Go(func() error { s.security.watch(ctx, s.logger); return nil })
	parts.Go(func() error { s.handler.Run(backendCtx); return nil })
	s.backend.Start(backendCtx, parts)
	parts.Go(func() error {
		<-ctx.Done()
		defer stopBackend()
		return s.drain(context.WithoutCancel(ctx))
	})
	err := parts.Wait()
	s.logger.Info("stopped")
	return err
}

// drain stops accepting, lets the running requests finish within
// DrainTimeout, and cuts those off that have not.
func (s *service) drain(ctx context.Context) error {
	s.logger.Info("stopping: new requests are refused, and running ones may finish")
	s.backend.Locker.StopWaiting() // they might wait for minutes
	s.backend.Events.Stop()        // and these for ever
	ctx, cancel := context.WithTimeout(ctx, DrainTimeout)
	defer cancel()
	err := s.public.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.logger.Warn("some requests did not finish in time and are cut off", slog.Duration("limit", DrainTimeout))
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
