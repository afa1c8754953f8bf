// Package barehttp is the floor under fencelock over HTTP: a server with chi and net/http that
// sends recorded responses and has no locks behind it. Fencelock over HTTP can't be faster.
package barehttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
)

// Command is the argument that makes the benchmark's program run as this server. Variable is the
// environment variable with its responses, a JSON array of Answer.
const (
	Command  = "bare-http"
	Variable = "BENCH_ANSWERS"
)

// Answer is the response that the server sends for one route.
type Answer struct {
	Method, Path string
	Status       int
	Header       http.Header
	Body         []byte
}

// Record acquires and releases one lease at the fencelock server at addr, and returns the
// responses.
func Record(ctx context.Context, addr, host string) ([]Answer, error) {
	acquired, err := record(ctx, addr, host, http.MethodPost, "/locks", "", `{"resource":"bare/0","ttl_ms":10000}`)
	if err != nil {
		return nil, err
	}
	var lease struct {
		ID string `json:"lease_id"`
	}
	if err := json.Unmarshal(acquired.Body, &lease); err != nil {
		return nil, err
	}
	released, err := record(ctx, addr, host, http.MethodDelete, "/leases/current", lease.ID, "")
	return []Answer{acquired, released}, err
}

func record(ctx context.Context, addr, host, method, path, lease, body string) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, nil)
	if err != nil {
		return Answer{}, err
	}
	req.Host = host
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
		req.Body = io.NopCloser(strings.NewReader(body))
		req.ContentLength = int64(len(body))
	}
	if lease != "" {
		req.Header.Set("Fencelock-Lease", lease)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	sent, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= http.StatusBadRequest {
		return Answer{}, errors.Join(err, fmt.Errorf("%s %s: %d %.300s", method, path, resp.StatusCode, sent))
	}
	for _, own := range []string{"Date", "Content-Length"} { // net/http sets these itself
		resp.Header.Del(own)
	}
	return Answer{Method: method, Path: path, Status: resp.StatusCode, Header: resp.Header, Body: sent}, nil
}

// Serve sends the responses of the environment variable until ctx ends. It prints its address in
// the same way as fencelock.
func Serve(ctx context.Context) error {
	var answers []Answer
	if err := json.Unmarshal([]byte(os.Getenv(Variable)), &answers); err != nil { //nolint:musttag // as this program has written them
		return fmt.Errorf("%s: %w", Variable, err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler(answers), ReadHeaderTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	fmt.Printf("{\"addr\":%q}\n", l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func handler(answers []Answer) http.Handler {
	r := chi.NewRouter()
	for _, a := range answers {
		r.MethodFunc(a.Method, a.Path, func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			h := w.Header()
			maps.Copy(h, a.Header)
			w.WriteHeader(a.Status)
			_, _ = w.Write(a.Body)
		})
	}
	return r
}
