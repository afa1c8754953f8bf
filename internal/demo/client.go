package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// A server that cannot answer now (503) is asked again for a while: nodes may
// be slow for a moment, and Retry-After speaks of whole seconds.
const (
	patience   = 10 * time.Second
	retryEvery = 100 * time.Millisecond
)

// bodyMost bounds what is read of an answer, in bytes.
const bodyMost = 1 << 20

// refusal is an answer that is not a success.
type refusal struct {
	status int
	wire.Problem
}

func (r *refusal) Error() string {
	text := fmt.Sprintf("%d %s", r.status, strings.TrimPrefix(r.Type, wire.ProblemPrefix))
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	return text
}

// refused says whether an error is the refusal of this status.
func refused(err error, status int) (*refusal, bool) {
	r, ok := errors.AsType[*refusal](err)
	return r, ok && r.status == status
}

// server is the lock service as anybody may use it: over HTTP, and with
// nothing that the documentation does not tell.
type server struct {
	url    string
	client *http.Client
}

// newServer uses no proxy: the server is a process on this machine.
func newServer(url string) *server {
	return &server{url: url, client: &http.Client{Transport: &http.Transport{}}}
}

// acquire takes the lock of a resource. The returned instant is that of the
// question, from which the holder has to count its lease's validity.
func (s *server) acquire(ctx context.Context, resource, holder string, ttl, wait time.Duration) (wire.Lease, time.Time, error) {
	ttlMS, waitMS := ttl.Milliseconds(), wait.Milliseconds()
	var lease wire.Lease
	asked := time.Now()
	err := s.do(ctx, &lease, http.MethodPost, "/locks", 0, wire.AcquireRequest{
		Resource: resource, TTLMS: &ttlMS, WaitMS: &waitMS, Holder: holder,
	})
	return lease, asked, err
}

// lease asks what is left of a lease, counted from the returned instant.
func (s *server) lease(ctx context.Context, leaseID string) (wire.Lease, time.Time, error) {
	var lease wire.Lease
	asked := time.Now()
	err := s.do(ctx, &lease, http.MethodGet, "/leases/"+leaseID, 0, nil)
	return lease, asked, err
}

// release gives a lease back.
func (s *server) release(ctx context.Context, leaseID string) error {
	return s.do(ctx, nil, http.MethodDelete, "/leases/"+leaseID, 0, nil)
}

// read reads a guarded record; with a token it claims it first.
func (s *server) read(ctx context.Context, resource string, token int64) (wire.Record, error) {
	var record wire.Record
	err := s.do(ctx, &record, http.MethodGet, "/guarded/"+resource, token, nil)
	return record, err
}

func (s *server) write(ctx context.Context, resource string, token int64, value any) error {
	return s.do(ctx, nil, http.MethodPut, "/guarded/"+resource, token, value)
}

// ready asks whether the server may grant locks; the answer says why not.
func (s *server) ready(ctx context.Context) (wire.Ready, error) {
	var ready wire.Ready
	err := s.do(ctx, &ready, http.MethodGet, "/readyz", 0, nil)
	return ready, err
}

// do asks until there is an answer, and reads it into v unless v is nil.
func (s *server) do(ctx context.Context, v any, method, path string, token int64, body any) error {
	begun := time.Now()
	for again := false; ; again = true {
		err := s.once(ctx, v, method, path, token, body)
		_, away := refused(err, http.StatusServiceUnavailable)
		if away && time.Since(begun) < patience {
			if err := pause(ctx, retryEvery); err != nil {
				return err
			}
			continue
		}
		if _, gone := refused(err, http.StatusNotFound); gone && again && method == http.MethodDelete {
			return nil // the first question did it, and its answer was late
		}
		return err
	}
}

// once asks once. /readyz answers with the same body whether it is ready or not.
func (s *server) once(ctx context.Context, v any, method, path string, token int64, body any) error {
	req, err := s.request(ctx, method, path, token, body)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, bodyMost))
	if err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusBadRequest && path != "/readyz" {
		r := &refusal{status: resp.StatusCode}
		_ = json.Unmarshal(text, &r.Problem) // the status says enough without
		return fmt.Errorf("%s %s: %w", method, path, r)
	}
	if v == nil {
		return nil
	}
	return json.Unmarshal(text, v)
}

func (s *server) request(ctx context.Context, method, path string, token int64, body any) (*http.Request, error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, content)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", wire.TypeJSON)
	}
	if token != 0 {
		req.Header.Set(wire.HeaderFencingToken, strconv.FormatInt(token, 10))
	}
	return req, nil
}
