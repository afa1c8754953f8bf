// Command way counts the files and functions of this repository that run for a request. It sends a hundred
// requests of each kind to the socket of a server, which uses three Redis. The server does not observe its
// nodes meanwhile. CONTRIBUTING draws the way of a request.
//
//	for port in 7001 7002 7003; do redis-server --port $port --save "" --daemonize yes; done
//	go run -cover -covermode=atomic -coverpkg=./... ./internal/way localhost:7001 localhost:7002 localhost:7003
//
// With WAYS=folder it also writes the lists of functions into that folder.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/coverage"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/sets"
	"github.com/fencelock/fencelock/storage/redisnode"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "way:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addresses []string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	url, err := serve(ctx, addresses)
	if err != nil {
		return err
	}
	const requests = 100
	for i := range requests { // after the responses to these, the server has started
		lease, err := call(ctx, http.MethodPost, url+"/locks", fmt.Sprintf(`{"resource":"first/%d"}`, i), "")
		if err == nil {
			_, err = call(ctx, http.MethodDelete, url+"/leases/current", "", lease)
		}
		if err != nil {
			return err
		}
	}
	time.Sleep(100 * time.Millisecond) // the slowest node's replies to the last release come after the response
	leases := make([]string, requests)
	for _, kind := range []struct {
		name string
		one  func(i int) error
	}{
		{"acquire", func(i int) (err error) {
			leases[i], err = call(ctx, http.MethodPost, url+"/locks", fmt.Sprintf(`{"resource":"way/%d"}`, i), "")
			return err
		}},
		{"extend", func(i int) error {
			_, err := call(ctx, http.MethodPost, url+"/leases/current/extend", "", leases[i])
			return err
		}},
		{"release", func(i int) error {
			_, err := call(ctx, http.MethodDelete, url+"/leases/current", "", leases[i])
			return err
		}},
	} {
		if err := coverage.ClearCounters(); err != nil {
			return err
		}
		for i := range requests {
			if err := kind.one(i); err != nil {
				return fmt.Errorf("%s: %w", kind.name, err)
			}
		}
		if err := report(ctx, kind.name); err != nil {
			return err
		}
	}
	return nil
}

// serve serves these nodes as cmd/fencelock does, until the program ends.
func serve(ctx context.Context, addresses []string) (url string, err error) {
	var nodes []node.Node
	for _, address := range addresses {
		n, err := redisnode.Open(address, redisnode.Options{})
		if err != nil {
			return "", err
		}
		nodes = append(nodes, n)
	}
	locker, err := sets.New(sets.Config{New: true, WatchInterval: time.Hour}, nodes)
	if err != nil {
		return "", err
	}
	go func() { _ = locker.Run(ctx) }()
	for !locker.Status().Ready {
		select {
		case <-ctx.Done():
			return "", errors.New("the nodes do not vote: " + locker.Status().Reason)
		case <-time.After(10 * time.Millisecond):
		}
	}
	quiet := slog.New(slog.DiscardHandler)
	handler := api.New(api.Options{Service: locker, Logger: quiet, Metrics: prometheus.NewRegistry(), Events: events.NewHub()})
	go handler.Run(ctx)
	server := httptest.NewUnstartedServer(handler)
	server.Listener = edge.NewListener(server.Listener, edge.ListenerOptions{Logger: quiet})
	server.Config.ConnContext = edge.ConnContext
	server.Start()
	return server.URL, nil
}

// call sends a request about the lease, "" for none, and returns the lease that it granted.
func call(ctx context.Context, method, url, body, lease string) (granted string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body)) //nolint:gosec // to the server that it has started
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", wire.TypeJSON)
	if lease != "" {
		req.Header.Set(wire.HeaderLease, lease)
	}
	res, err := http.DefaultClient.Do(req) //nolint:gosec // to the server that it has started
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode >= http.StatusBadRequest {
		return "", errors.Join(fmt.Errorf("%s: %s", res.Status, text), err)
	}
	_, rest, _ := strings.Cut(string(text), `"lease_id":"`)
	granted, _, _ = strings.Cut(rest, `"`)
	return granted, nil
}

// report prints what has run since the counters were cleared.
func report(ctx context.Context, kind string) error {
	dir, err := os.MkdirTemp("", "way")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := errors.Join(coverage.WriteMetaDir(dir), coverage.WriteCountersDir(dir)); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "go", "tool", "covdata", "func", "-i="+dir).Output()
	if err != nil {
		return err
	}
	var ran strings.Builder
	files, functions := make(map[string]bool), 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line) // file:line: function percent
		if len(fields) != 3 || fields[2] == "0.0%" || fields[0] == "total" || strings.Contains(fields[0], "/internal/way/") {
			continue
		}
		file, _, _ := strings.Cut(fields[0], ":")
		files[file] = true
		functions++
		fmt.Fprintln(&ran, file, fields[1])
	}
	fmt.Printf("%-8s %3d files %4d functions\n", kind, len(files), functions)
	if folder := os.Getenv("WAYS"); folder != "" {
		return os.WriteFile(filepath.Join(folder, kind+".txt"), []byte(ran.String()), 0o600) //nolint:gosec // a folder of whoever runs it
	}
	return nil
}
