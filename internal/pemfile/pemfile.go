// Package pemfile reads PEM files whole. The standard library skips what it cannot
// read: a file that was cut off while it was copied is then a shorter list of
// authorities, and its other callers are refused without a word.
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

// Authorities reads a file of certificates. Text between them is a comment, unless a
// line of it begins with a dash. The error names the file.
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

// KeyPair reads a certificate, with those that lead to its authority, and its key. The
// error names the file.
func KeyPair(certFile, keyFile string) (tls.Certificate, error) {
	for _, path := range []string{certFile, keyFile} {
		if _, err := read(path); err != nil {
			return tls.Certificate{}, err
		}
	}
	return tls.LoadX509KeyPair(certFile, keyFile)
}

// Client makes the configuration of a client from the options ca, cert and key of a URL,
// which name files; without ca, the system's authorities count. The error names the option.
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

// read returns a file's blocks, of which there is one at least, and all are whole.
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
