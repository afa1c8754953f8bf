package main

import (
	"context"
	"encoding/json"
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
		address = defaultOf("Listen")
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
	return "http://" + net.JoinHostPort(host, port), nil
}

// get asks a server and returns the status and the body.
func get(ctx context.Context, server, path string) (int, []byte, error) {
	if server == "" {
		own, err := ownServer()
		if err != nil {
			return 0, nil, err
		}
		server = own
	}
	ctx, cancel := context.WithTimeout(ctx, remoteTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(server, "/")+path, nil)
	if err != nil {
		return 0, nil, usageError{err}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, remoteBodyMost))
	return resp.StatusCode, body, err
}

// ready asks a server for its nodes.
func ready(ctx context.Context, server string) (wire.Ready, error) {
	status, body, err := get(ctx, server, "/readyz")
	if err != nil {
		return wire.Ready{}, err
	}
	var r wire.Ready
	if err := json.Unmarshal(body, &r); err != nil || status != http.StatusOK && status != http.StatusServiceUnavailable {
		return wire.Ready{}, fmt.Errorf("the server answered %d to /readyz: is it a fencelock?", status)
	}
	return r, nil
}
