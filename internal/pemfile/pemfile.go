// Package pemfile refuses PEM files that are incomplete. The standard library skips what it cannot read. So a
// file of authorities that was cut off during a copy would become a shorter list, and callers of the missing
// authorities would be refused for no visible reason.
package pemfile

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
)

// Authorities reads a file of certificates. Text between them is a comment, unless a line of it begins with a
// dash. Errors name the file.
func Authorities(path string) (*x509.CertPool, error) {
	blocks, err := read(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	for i, block := range blocks {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || block.Type != "CERTIFICATE" {
			return nil, errors.Join(fmt.Errorf("%s: block %d, of %q, must be a certificate", path, i+1, block.Type), err)
		}
		pool.AddCert(cert)
	}
	return pool, nil
}

// KeyPair reads a certificate, with the certificates that lead to its authority, and its key. Errors name the
// file.
func KeyPair(certFile, keyFile string) (tls.Certificate, error) {
	for _, path := range []string{certFile, keyFile} {
		if _, err := read(path); err != nil {
			return tls.Certificate{}, err
		}
	}
	return tls.LoadX509KeyPair(certFile, keyFile)
}

// Client makes a client's TLS configuration from the options ca, cert and key of a URL, which name files.
// Without ca, the system's authorities are trusted. Errors name the option.
func Client(options url.Values) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if file := options.Get("ca"); file != "" {
		pool, err := Authorities(file)
		if err != nil {
			return nil, fmt.Errorf("the option ca of the URL: %w", err)
		}
		config.RootCAs = pool
	}
	cert, key := options.Get("cert"), options.Get("key")
	switch {
	case (cert == "") != (key == ""):
		return nil, errors.New("the options cert and key of the URL go together")
	case cert != "":
		pair, err := KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("the options cert and key of the URL: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// read returns the blocks of a file. It returns an error if there are none, or if a block is incomplete.
func read(path string) (blocks []*pem.Block, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	borders := 0 // lines that begin or end a block, or could be part of such a line
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("-")) {
			borders++
		}
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		blocks = append(blocks, block)
	}
	switch {
	case borders == 0:
		return nil, fmt.Errorf("%s holds nothing in PEM", path)
	case borders != 2*len(blocks):
		return nil, fmt.Errorf("%s is cut off or broken: %d blocks of it can be read, and more have begun; write it again, in one step (rename)", path, len(blocks))
	}
	return blocks, nil
}
