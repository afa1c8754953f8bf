package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/reload"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// security is who may call and over what; without files, anybody over anything.
type security struct {
	keeper *access.Keeper // nil: nobody is asked
	file   string
	issuer *access.Issuer              // nil: nobody is known by a JWT
	certs  *certificates               // nil: no TLS
	proofs *keyFile[fencing.ProofKeys] // nil: no proofs
	leases *keyFile[redlock.Keys]      // nil: lease ids are sealed under the cluster's own secret

	unusable *prometheus.GaugeVec // by variable, see measure
}

// keyFile is the keys of a file as they last were good.
type keyFile[Keys any] struct {
	variable, file string
	parse          func(text string) (*Keys, error)
	current        atomic.Pointer[Keys]
}

func (k *keyFile[Keys]) load() error {
	text, err := os.ReadFile(k.file) //nolint:gosec // the operator names the file
	if err != nil {
		return fmt.Errorf("%s: %w", k.variable, err)
	}
	keys, err := k.parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %s: %w", k.variable, k.file, err)
	}
	k.current.Store(keys)
	return nil
}

// get gives a function for the keys of the moment; nil if there is no file.
func (k *keyFile[Keys]) get() func() *Keys {
	if k == nil {
		return nil
	}
	return k.current.Load
}

func newProofKeyFile(path string) *keyFile[fencing.ProofKeys] {
	return &keyFile[fencing.ProofKeys]{variable: proofKeyFile, file: path, parse: fencing.ParseProofKeys}
}

func newLeaseKeyFile(path string) *keyFile[redlock.Keys] {
	return &keyFile[redlock.Keys]{variable: leaseKeyFile, file: path, parse: func(text string) (*redlock.Keys, error) {
		parsed, err := fencing.ParseProofKeys(text) // the files have one form
		if err != nil {
			return nil, err
		}
		var secrets [][]byte
		for _, key := range parsed.Keys() {
			secrets = append(secrets, key.Secret)
		}
		return redlock.NewKeys(secrets...)
	}}
}

// openSecurity reads the files. The error names the variable.
func openSecurity(cfg config) (*security, error) {
	s := &security{file: cfg.access.file}
	if s.file != "" {
		var verifier access.Verifier
		if cfg.access.oidc.Issuer != "" {
			s.issuer = access.NewIssuer(cfg.access.oidc)
			verifier = s.issuer
		}
		keeper, err := access.Open(s.file, verifier)
		if err != nil {
			return nil, fmt.Errorf("FENCELOCK_ACCESS_FILE cannot be used; docs/reference/access.md says what it holds:\n%w", err)
		}
		s.keeper = keeper
	}
	if cfg.proofKeys != "" {
		s.proofs = newProofKeyFile(cfg.proofKeys)
		if err := s.proofs.load(); err != nil {
			return nil, err
		}
	}
	if cfg.leaseKeys != "" {
		s.leases = newLeaseKeyFile(cfg.leaseKeys)
		if err := s.leases.load(); err != nil {
			return nil, err
		}
	}
	if cfg.tls.cert != "" {
		s.certs = &certificates{files: cfg.tls}
		if err := s.certs.load(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// hosts are the hosts that are answered where nobody is asked who they are.
func (s *security) hosts(cfg config) *api.Hosts {
	if s.keeper != nil {
		return nil
	}
	return &api.Hosts{Listen: cfg.listen, Names: cfg.allowedHosts}
}

func (s *security) asksCallers() bool { return s.keeper != nil }

func (s *security) scheme() string {
	if s.certs != nil {
		return "https"
	}
	return "http"
}

// tls is the configuration of the listeners; nil without a certificate.
func (s *security) tls() *tls.Config {
	if s.certs == nil {
		return nil
	}
	return s.certs.config()
}

// describe is for the log's first line.
func (s *security) describe() string {
	if s.keeper == nil {
		return "anybody, " + s.scheme()
	}
	return fmt.Sprintf("%d names, %s", s.keeper.Identities(), s.scheme())
}

// notes are what the operator should know.
func (s *security) notes(cfg config) (notes []string) {
	if s.keeper != nil && s.certs == nil && !onLoopback(cfg.listen) {
		notes = append(notes, "bearer tokens travel unencrypted: set FENCELOCK_TLS_CERT_FILE and FENCELOCK_TLS_KEY_FILE, unless something in front of this server ends TLS")
	}
	return notes
}

// watch reads the files again when they change, and keeps the issuer's keys,
// until ctx ends.
func (s *security) watch(ctx context.Context, logger *slog.Logger) {
	var watches sync.WaitGroup
	watch := func(variable string, paths []string, load func() error) {
		files := reload.Files{Name: variable, Paths: paths, Load: load, Refused: s.refused(variable)}
		watches.Go(func() { reload.Watch(ctx, logger, files) })
	}
	if s.keeper != nil {
		watch(accessFile, []string{s.file}, s.keeper.Load)
	}
	if s.issuer != nil {
		watches.Go(func() { s.issuer.Run(ctx, logger) })
	}
	if s.certs != nil {
		watch(certFile, s.certs.paths(), s.certs.load)
	}
	if s.proofs != nil {
		watch(s.proofs.variable, []string{s.proofs.file}, s.proofs.load)
	}
	if s.leases != nil {
		watch(s.leases.variable, []string{s.leases.file}, s.leases.load)
	}
	watches.Wait()
}

// The variables whose files are read again, as the log and the metric name them.
const (
	accessFile   = "FENCELOCK_ACCESS_FILE"
	certFile     = "FENCELOCK_TLS_CERT_FILE"
	proofKeyFile = "FENCELOCK_PROOF_KEY_FILE"
	leaseKeyFile = "FENCELOCK_LEASE_KEY_FILE"
)

// measure adds the gauge of files that changed and cannot be used.
func (s *security) measure(registry prometheus.Registerer) {
	s.unusable = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "fencelock_file_refused",
		Help: "1 while a file that changed cannot be used, and the version before stays in force.",
	}, []string{"file"})
	registry.MustRegister(s.unusable)
	for _, variable := range []string{accessFile, certFile, proofKeyFile, leaseKeyFile} {
		s.refused(variable)(false)
	}
}

// refused tells the gauge of a file.
func (s *security) refused(variable string) func(bool) {
	return func(refused bool) { s.unusable.WithLabelValues(variable).Set(truth(refused)) }
}

// certificates are the TLS files as they last were good.
type certificates struct {
	files   tlsFiles
	current atomic.Pointer[tls.Config]
}

func (c *certificates) paths() []string {
	return slices.DeleteFunc([]string{c.files.cert, c.files.key, c.files.clientCA}, func(path string) bool { return path == "" })
}

// load reads the files. After an error those from before stay in use.
func (c *certificates) load() error {
	cert, err := tls.LoadX509KeyPair(c.files.cert, c.files.key)
	if err != nil {
		return fmt.Errorf("FENCELOCK_TLS_CERT_FILE and FENCELOCK_TLS_KEY_FILE must be a certificate and its key, in PEM: %w", err)
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"},
	}
	if c.files.clientCA != "" {
		if config.ClientCAs, err = readAuthorities(c.files.clientCA); err != nil {
			return fmt.Errorf("FENCELOCK_TLS_CLIENT_CA_FILE: %w", err)
		}
		// Who shows none may still have a bearer token.
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	c.current.Store(config)
	return nil
}

func readAuthorities(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New(path + " holds no certificate in PEM")
	}
	return pool, nil
}

// config takes the files' latest version for each connection.
func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil },
	}
}
