package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The files of a TLS node. The certificate is signed by its own key, so it is also the
// authority that a client has to trust.
const (
	certFile = "server.pem"
	keyFile  = "server-key.pem"
)

// writeCertificate makes a certificate for this machine's loopback names, and returns a
// client configuration that trusts it.
func writeCertificate(dir string) (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "fencelock test server"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		IsCA:         true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		DNSNames:    []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certPEM)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, errors.Join(
		os.WriteFile(filepath.Join(dir, certFile), certPEM, 0o600),
		os.WriteFile(filepath.Join(dir, keyFile), keyPEM, 0o600),
	)
}

// Certificate writes a certificate for this machine's loopback names, and its key. The certificate is its own
// authority.
func Certificate(t testing.TB) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	if _, err := writeCertificate(dir); err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return filepath.Join(dir, certFile), filepath.Join(dir, keyFile)
}
