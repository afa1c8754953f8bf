package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// remoteTimeout bounds a request of a command to a server.
const remoteTimeout = 5 * time.Second

// remoteBodyMost bounds what a command reads of an answer, in bytes.
const remoteBodyMost = 4 << 20

// ownServer is the URL of the server that the environment configures, as seen
// from the same machine.
func ownServer() (string, error) {
	address := os.Getenv("FENCELOCK_LISTEN")
	if address == "" {
		address = defaultOf("FENCELOCK_LISTEN")
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "0" {
		return "", usageError{fmt.Errorf("FENCELOCK_LISTEN=%q names no port to ask: say --server http://host:port", address)}
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	scheme := "http"
	if os.Getenv("FENCELOCK_TLS_CERT_FILE") != "" {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

// trustOwn is for the server that the environment configures. Over TLS it is
// known by its certificate, whatever name that is for.
func trustOwn(config *tls.Config) (*tls.Config, error) {
	path := os.Getenv("FENCELOCK_TLS_CERT_FILE")
	if path == "" {
		return config, nil
	}
	text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("FENCELOCK_TLS_CERT_FILE: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("FENCELOCK_TLS_CERT_FILE holds no certificate in PEM")
	}
	config.InsecureSkipVerify = true // the certificate itself is compared
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if !bytes.Equal(state.PeerCertificates[0].Raw, block.Bytes) {
			return errors.New("the server shows another certificate than the one in FENCELOCK_TLS_CERT_FILE: say --server")
		}
		return nil
	}
	return config, nil
}

// get asks the server, the first of several, and returns the status and the body.
func (c *connection) get(ctx context.Context, path string) (int, []byte, error) {
	servers, err := c.servers()
	if err != nil {
		return 0, nil, err
	}
	server, _, _ := strings.Cut(servers, ",")
	ctx, cancel := context.WithTimeout(ctx, remoteTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(strings.TrimSpace(server), "/")+path, nil)
	if err != nil {
		return 0, nil, usageError{err}
	}
	asker, err := c.httpClient()
	if err != nil {
		return 0, nil, err
	}
	if err := c.authorize(req); err != nil {
		return 0, nil, err
	}
	resp, err := asker.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, remoteBodyMost))
	return resp.StatusCode, body, err
}

// ready asks a server for its nodes.
func (c *connection) ready(ctx context.Context) (wire.Ready, error) {
	status, body, err := c.get(ctx, "/readyz")
	if err != nil {
		return wire.Ready{}, err
	}
	if status == http.StatusUnauthorized {
		return wire.Ready{}, errors.New("the server does not know these credentials: see FENCELOCK_BEARER_TOKEN_FILE, or ask without any")
	}
	var r wire.Ready
	if err := json.Unmarshal(body, &r); err != nil || status != http.StatusOK && status != http.StatusServiceUnavailable {
		return wire.Ready{}, fmt.Errorf("the server answered %d to /readyz: is it a fencelock?", status)
	}
	return r, nil
}
