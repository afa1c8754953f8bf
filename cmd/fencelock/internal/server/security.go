package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/keyfile"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/reload"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/pemfile"
	"github.com/fencelock/fencelock/lockcore/keyring"
)

// The variables whose files are reloaded, as they appear in the log and in the metric.
const (
	accessFile   = "FENCELOCK_ACCESS_FILE"
	certFile     = "FENCELOCK_TLS_CERT_FILE"
	proofKeyFile = "FENCELOCK_PROOF_KEY_FILE"
	leaseKeyFile = "FENCELOCK_LEASE_KEY_FILE"

	redisFile     = "FENCELOCK_REDIS_ADDRS_FILE"
	redisNextFile = "FENCELOCK_REDIS_NEXT_ADDRS_FILE"
	storeFile     = "FENCELOCK_STORE_FILE"
	databaseFile  = "FENCELOCK_DATABASE_URL_FILE"
)

// security decides who may call and with which rights. Without files, every caller may, over HTTP.
type security struct {
	keeper *access.Keeper // nil without access control
	issuer *access.Issuer // nil if JWTs are not accepted
	certs  *loaded[tls.Config]
	proofs *loaded[fencing.ProofKeys]
	leases *loaded[keyring.Ring]

	files []reload.Files
}

// loaded is the last valid content of the files; nil without files.
type loaded[T any] struct{ current atomic.Pointer[T] }

// get returns a function that returns the present value; nil without files.
func (l *loaded[T]) get() func() *T {
	if l == nil {
		return nil
	}
	return l.current.Load
}

// load reads a variable's files now, and again whenever they change. The first path is "" if the variable
// is not set.
func load[T any](s *security, variable string, read func() (*T, error), paths ...string) (*loaded[T], error) {
	if paths[0] == "" {
		return nil, nil //nolint:nilnil // no file is a configuration, not a failure
	}
	l := &loaded[T]{}
	again := func() error {
		value, err := read()
		if err != nil {
			return fmt.Errorf("%s: %w", variable, err)
		}
		l.current.Store(value)
		return nil
	}
	s.files = append(s.files, reload.Files{Name: variable, Paths: slices.DeleteFunc(paths, func(path string) bool { return path == "" }), Load: again})
	return l, again()
}

// CheckFiles reads the files of access control, keys and certificates, as a server does when it starts.
// The error names the variable.
func CheckFiles(cfg config.Config) error {
	_, err := openSecurity(cfg)
	return err
}

// openSecurity reads the files. Its error names the variable.
func openSecurity(cfg config.Config) (s *security, err error) {
	s = &security{}
	if err := s.openAccess(cfg); err != nil {
		return nil, err
	}
	readProofs := func() (*fencing.ProofKeys, error) { return keyfile.Read(cfg.ProofKeyFile) }
	if s.proofs, err = load(s, proofKeyFile, readProofs, cfg.ProofKeyFile); err != nil {
		return nil, err
	}
	readLeases := func() (*keyring.Ring, error) { return readLeaseKeys(cfg.LeaseKeyFile) }
	if s.leases, err = load(s, leaseKeyFile, readLeases, cfg.LeaseKeyFile); err != nil {
		return nil, err
	}
	readCerts := func() (*tls.Config, error) { return readCertificates(cfg) }
	s.certs, err = load(s, certFile, readCerts, cfg.TLSCertFile, cfg.TLSKeyFile, cfg.TLSClientCAFile)
	return s, err
}

func (s *security) openAccess(cfg config.Config) (err error) {
	if cfg.AccessFile == "" {
		return nil
	}
	var verifier access.Verifier
	if cfg.OIDCIssuer != "" {
		s.issuer = access.NewIssuer(access.OIDC{Issuer: cfg.OIDCIssuer, Audience: cfg.OIDCAudience, Claim: cfg.OIDCClaim})
		verifier = s.issuer
	}
	if s.keeper, err = access.Open(cfg.AccessFile, verifier); err != nil {
		return fmt.Errorf("FENCELOCK_ACCESS_FILE cannot be used; docs/reference/access.md says what it holds:\n%w", err)
	}
	s.files = append(s.files, reload.Files{Name: accessFile, Paths: []string{cfg.AccessFile}, Load: s.keeper.Load})
	return nil
}

// readLeaseKeys reads a file of lease keys, which has the form of a file of proof keys.
func readLeaseKeys(path string) (*keyring.Ring, error) {
	parsed, err := keyfile.Read(path)
	if err != nil {
		return nil, err
	}
	var secrets [][]byte
	for _, key := range parsed.Keys() {
		secrets = append(secrets, key.Secret)
	}
	return keyring.New(secrets...)
}

func readCertificates(cfg config.Config) (*tls.Config, error) {
	cert, err := pemfile.KeyPair(cfg.TLSCertFile, cfg.TLSKeyFile)
	if err != nil {
		return nil, fmt.Errorf("it and FENCELOCK_TLS_KEY_FILE must name a certificate and its key, in PEM: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}}
	if cfg.TLSClientCAFile == "" {
		return config, nil
	}
	config.ClientAuth = tls.VerifyClientCertIfGiven // a caller without a certificate may have a bearer token
	if config.ClientCAs, err = pemfile.Authorities(cfg.TLSClientCAFile); err != nil {
		return nil, fmt.Errorf("FENCELOCK_TLS_CLIENT_CA_FILE: %w", err)
	}
	return config, nil
}

// hosts returns the host names to accept without access control.
func (s *security) hosts(cfg config.Config) *edge.Hosts {
	if s.keeper != nil {
		return nil
	}
	return &edge.Hosts{Listen: cfg.Listen, Names: cfg.AllowedHosts}
}

func (s *security) scheme() string {
	if s.certs != nil {
		return "https"
	}
	return "http"
}

// tls returns the TLS configuration of the listeners, which uses the files' latest version for each
// connection; nil without a certificate.
func (s *security) tls() *tls.Config {
	if s.certs == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.certs.current.Load(), nil },
	}
}

// describe returns the description for the log's first line.
func (s *security) describe() string {
	if s.keeper == nil {
		return "anybody, " + s.scheme()
	}
	return fmt.Sprintf("%d names, %s", s.keeper.Identities(), s.scheme())
}

// notes returns messages for the operator.
func (s *security) notes(cfg config.Config) []string {
	if s.keeper != nil && s.certs == nil && !config.OnLoopback(cfg.Listen) {
		return []string{"bearer tokens travel unencrypted: set FENCELOCK_TLS_CERT_FILE and FENCELOCK_TLS_KEY_FILE, unless something in front of this server ends TLS"}
	}
	return nil
}

// measure adds the gauge of files that changed and cannot be used.
func (s *security) measure(registry prometheus.Registerer) {
	unusable := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "fencelock_file_refused",
		Help: "1 while a file that changed cannot be used, and the previous version stays in force.",
	}, []string{"file"})
	registry.MustRegister(unusable)
	for _, variable := range []string{accessFile, certFile, proofKeyFile, leaseKeyFile, redisFile, redisNextFile, storeFile, databaseFile} {
		unusable.WithLabelValues(variable).Set(0)
	}
	for i, files := range s.files {
		gauge := unusable.WithLabelValues(files.Name)
		s.files[i].Refused = func(refused bool) {
			gauge.Set(0)
			if refused {
				gauge.Set(1)
			}
		}
	}
}

// watch reloads the files when they change, and refreshes the issuer's keys, until ctx ends.
func (s *security) watch(ctx context.Context, logger *slog.Logger) {
	var watches sync.WaitGroup
	for _, files := range s.files {
		watches.Go(func() { reload.Watch(ctx, logger, files) })
	}
	if s.issuer != nil {
		watches.Go(func() { s.issuer.Run(ctx, logger) })
	}
	watches.Wait()
}
