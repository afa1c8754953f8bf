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
	"time"
)

// The files of a TLS node.
const (
	caFile   = "ca.pem"
	certFile = "server.pem"
	keyFile  = "server-key.pem"
)

// writeCertificates makes an authority and a server certificate for this
// machine's loopback names, and returns a client configuration that trusts it.
func writeCertificates(dir string) (*tls.Config, error) {
	ca := certTemplate("fencelock test authority")
	ca.IsCA, ca.BasicConstraintsValid = true, true
	ca.KeyUsage = x509.KeyUsageCertSign
	caKey, caPEM, err := issue(ca, ca, nil)
	if err != nil {
		return nil, err
	}
	leaf := certTemplate("fencelock test server")
	leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	leaf.DNSNames = []string{"localhost"}
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	key, certPEM, err := issue(leaf, ca, caKey)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(caPEM)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, errors.Join(
		os.WriteFile(filepath.Join(dir, caFile), caPEM, 0o600),
		os.WriteFile(filepath.Join(dir, certFile), certPEM, 0o600),
		os.WriteFile(filepath.Join(dir, keyFile), keyPEM, 0o600),
	)
}

// certTemplate is what all certificates here have in common.
func certTemplate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

// issue makes a key and its certificate, signed by the parent's key or, without
// one, by itself.
func issue(cert, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if parentKey == nil {
		parentKey = key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, parentKey)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
