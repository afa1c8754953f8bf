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
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/backend"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/logging"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/reload"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/version"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// DrainTimeout bounds how long a stopping server lets requests finish. Together with the time that the
// Locker and the storages need afterwards, it must fit into 30 s.
const DrainTimeout = 20 * time.Second

const (
	idleTimeout   = 2 * time.Minute  // how long an idle connection is kept
	headerTimeout = 10 * time.Second // how long a request's header may take to arrive
	maxStreams    = 100              // the maximum number of concurrent requests over one HTTP/2 connection
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
				for _, v := range config.MisspeltVariables(clientVariables) {
					err = fmt.Errorf("%w\n%s: there is no such variable; did you mean %s?", err, v.Name, v.Closest)
				}
				return cli.UsageError{Err: err}
			}
			logger := logging.New(cfg, cmd.ErrOrStderr())
			redisnode.LogLibrary(logger)
			s := &service{cfg: cfg, logger: logger, audit: logging.NewAudit(cfg, cmd.ErrOrStderr()), clientVariables: clientVariables}
			s.banner = logging.IsText(cfg, cmd.ErrOrStderr())
			return s.serve(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

// serve runs the service until ctx ends, and then drains it.
func (s *service) serve(ctx context.Context, stdout io.Writer) (err error) {
	defer runtime.KeepAlive(heapFloor())
	if s.security, err = openSecurity(s.cfg); err != nil {
		return cli.UsageError{Err: err}
	}
	s.readLoginsAgain(ctx)
	if s.cfg.Tracing == "otlp" {
		var end func() error
		if s.tracer, end, err = openTracing(ctx, s.logger); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	registry, err := s.openBackend(ctx)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil // the server was stopped while its store did not respond
	}
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
	s.handle(registry, s.backend.Locker, s.backend.Guard, s.backend.Events)
	s.announce(stdout)
	return s.run(ctx)
}

// readLoginsAgain reloads the store's files when they change, for new users and passwords.
func (s *service) readLoginsAgain(ctx context.Context) {
	for _, file := range []struct{ variable, path string }{
		{redisFile, s.cfg.RedisAddrsFile}, {redisNextFile, s.cfg.RedisNextAddrsFile}, {storeFile, s.cfg.StoreFile}, {databaseFile, s.cfg.DatabaseURLFile},
	} {
		if file.path == "" {
			continue
		}
		s.security.files = append(s.security.files, reload.Files{Name: file.variable, Paths: []string{file.path}, Load: func() error {
			now, err := config.Load()
			if err != nil {
				return err
			}
			return s.backend.UseLogins(ctx, now)
		}})
	}
}

// service is a running server.
type service struct {
	cfg             config.Config
	logger, audit   *slog.Logger
	clientVariables []string // the client's variables, which are not misspelt server variables
	banner          bool     // a person reads the server's output
	backend         *backend.Backend
	security        *security
	tracer          trace.Tracer // nil for none
	publicSocket    *edge.Listener
	adminSocket     *edge.Listener
	handler         *api.Server
	public, admin   *http.Server
}

// listen opens the sockets. After an error they stay open until the process ends.
func (s *service) listen(ctx context.Context) (err error) {
	files := openFiles()
	public, admin := connectionLimits(files)
	open := func(variable, address string, config *tls.Config, connections int) (*edge.Listener, error) {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("another program uses the port of %s=%s: set %s to a free port, or stop that program", variable, address, variable)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot listen on %s=%s: %w", variable, address, err)
		}
		return edge.NewListener(l, edge.ListenerOptions{
			TLS: config, Handshake: headerTimeout, Max: connections, Name: variable, Remedy: remedy(files), Logger: s.logger,
		}), nil
	}
	if s.publicSocket, err = open("FENCELOCK_LISTEN", s.cfg.Listen, s.security.tls(), public); err != nil {
		return err
	}
	config := s.security.tls()
	if s.cfg.OpenAdmin() {
		config = nil
	}
	s.adminSocket, err = open("FENCELOCK_ADMIN_LISTEN", s.cfg.AdminListen, config, admin)
	return err
}

func (s *service) handle(registry *prometheus.Registry, locks lockcore.Service, guard fencing.Guard, hub *events.Hub) {
	s.publicSocket.Measure(registry)
	s.adminSocket.Measure(registry)
	s.handler = api.New(api.Options{
		Service:    locks,
		Guard:      guard,
		Events:     hub,
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
		admin = s.handler.OnlyHosts(edge.Hosts{Listen: s.cfg.AdminListen, Names: s.cfg.AllowedHosts}, admin)
	} else {
		admin = s.handler.AuthorizeAdmin(admin)
	}
	s.admin = s.httpServer(admin)
}

// httpServer limits the cost of a connection. It has no ReadTimeout, which would end requests that wait
// in the queue; package api limits the time for bodies itself.
func (s *service) httpServer(h http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           h,
		ConnContext:       edge.ConnContext,
		ConnState:         edge.ConnState,
		Protocols:         protocols,
		ReadHeaderTimeout: headerTimeout,
		HTTP2: &http.HTTP2Config{
			// By default a connection may have 250 streams, frames of a megabyte, and a megabyte of
			// unread bodies.
			MaxConcurrentStreams:          maxStreams,
			MaxReadFrameSize:              16 << 10,
			MaxReceiveBufferPerConnection: api.MaxBodyBytes,
			MaxReceiveBufferPerStream:     api.MaxBodyBytes,
			// A client that is sending a header cannot respond to a ping, so the pings together have the
			// header's time limit.
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
	s.logListening(s.backend.Mode)
	for _, v := range config.MisspeltVariables(s.clientVariables) {
		s.logger.Warn("an unknown variable is ignored", slog.String("variable", v.Name), slog.String("closest", v.Closest))
	}
	for _, note := range slices.Concat(s.backend.Notes, s.security.notes(s.cfg), filesNote(openFiles(), s.cfg.MaxWaiters)) {
		s.logger.Warn("note", slog.String("note", note))
	}
	if s.banner && len(s.cfg.RedisSets) == 0 {
		// The service continues even if stdout is closed.
		_, _ = io.WriteString(stdout, banner(s.publicSocket.Addr(), s.adminSocket.Addr(), s.backend.Mode, s.cfg, s.security))
	}
}

func (s *service) logListening(mode string) {
	id, date := version.Commit()
	s.logger.Info("listening",
		slog.String("addr", s.publicSocket.Addr().String()),
		slog.String("admin_addr", s.adminSocket.Addr().String()),
		slog.String("mode", mode),
		slog.String("access", s.security.describe()),
		slog.String("version", version.String()),
		slog.String("commit", id),
		slog.String("commit_date", date))
}

// run serves until ctx ends or a part fails. Then it stops the parts in order: first the requests, then
// the Locker, which the requests need.
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

// drain stops accepting requests, and lets the running ones finish within DrainTimeout. Then it cuts off
// the rest.
func (s *service) drain(ctx context.Context) error {
	s.logger.Info("stopping: new requests are refused, and running ones may finish")
	s.backend.Locker.StopWaiting() // waiting requests might wait for minutes
	s.backend.Events.Stop()        // streams never end by themselves
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
