// Package barehttp is the floor under fencelock over HTTP: a server of chi and net/http
// that sends recorded answers, and has no locks behind it.
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

// Command is the argument by which the benchmark's program is this server, and Variable
// the environment variable with its answers: a JSON array of Answer.
const (
	Command  = "bare-http"
	Variable = "BENCH_ANSWERS"
)

// Answer is what the server sends for one route.
type Answer struct {
	Method, Path string
	Status       int
	Header       http.Header
	Body         []byte
}

// Record asks a fencelock server at addr for one lease and its release.
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
	for _, own := range []string{"Date", "Content-Length"} { // net/http's
		resp.Header.Del(own)
	}
	return Answer{Method: method, Path: path, Status: resp.StatusCode, Header: resp.Header, Body: sent}, nil
}

// Serve serves the answers of the environment until ctx ends. It prints its address as
// fencelock does.
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
