package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// answerWithin is how long a client waits for an answer, besides what it asked
// the server to wait.
const answerWithin = 3 * time.Second

// newTransport is what all clients share: it finds a server's present address
// by its name and keeps connections alive.
func newTransport(servers []*server) *http.Transport {
	byName := map[string]*server{}
	for _, s := range servers {
		byName[s.name+":80"] = s
	}
	dial := func(ctx context.Context, _, name string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", *byName[name].address.Load())
	}
	return &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 512}
}

// answer is what came back; status 0 if nothing did.
type answer struct {
	status int
	body   []byte
}

// into reads the body into v; a body that is not what it should be counts as
// an answer that was lost.
func (a *answer) into(v any) {
	if err := json.Unmarshal(a.body, v); err != nil {
		a.status = 0
	}
}

// request is what a client sends.
type request struct {
	method, path, body string
	header             [2]string // one line, or none
	wait               time.Duration
}

// send sends a request to a server. An answer that does not come whole is none.
func (s *Stand) send(ctx context.Context, server int, r request) answer {
	ctx, cancel := context.WithTimeout(ctx, answerWithin+r.wait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, "http://"+s.servers[server].name+r.path, strings.NewReader(r.body))
	if err != nil {
		panic(err) // the runner's own mistake
	}
	if r.body != "" {
		req.Header.Set("Content-Type", wire.TypeJSON)
	}
	if r.header[0] != "" {
		req.Header.Set(r.header[0], r.header[1])
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return answer{}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}
	}
	return answer{status: resp.StatusCode, body: bytes.TrimSpace(body)}
}

// call is one operation: it sends the request, notes when, and keeps what came.
func (s *Stand) call(ctx context.Context, h *history, o *op, r request, read func(*answer)) {
	o.Sent = s.now()
	a := s.send(ctx, o.Server, r)
	if read != nil && a.status != 0 {
		read(&a)
	}
	o.Done, o.Status = s.now(), a.status
	h.add(o)
}

// acquire is POST /locks.
func (s *Stand) acquire(ctx context.Context, h *history, o *op, ttl, wait time.Duration) {
	o.Kind, o.Wait = opAcquire, wait
	body := wire.AcquireRequest{Resource: o.Resource, TTLMS: milliseconds(ttl), Holder: fmt.Sprint("client-", o.Client)}
	if wait > 0 {
		body.WaitMS = milliseconds(wait)
	}
	r := request{method: http.MethodPost, path: "/locks", body: marshal(body), wait: wait}
	if o.Key != "" {
		r.header = [2]string{wire.HeaderIdempotencyKey, o.Key}
	}
	s.call(ctx, h, o, r, o.readLease)
}

// readLease keeps what a grant says.
func (o *op) readLease(a *answer) {
	if a.status != http.StatusCreated && a.status != http.StatusOK {
		return
	}
	var lease wire.Lease
	a.into(&lease)
	o.Lease, o.Token, o.Validity = lease.LeaseID, lease.FencingToken, time.Duration(lease.ValidityMS)*time.Millisecond
}

// extend is POST /leases/{id}/extend.
func (s *Stand) extend(ctx context.Context, h *history, o *op, ttl time.Duration) {
	o.Kind = opExtend
	body := marshal(wire.ExtendRequest{TTLMS: milliseconds(ttl)})
	r := request{method: http.MethodPost, path: "/leases/" + o.Lease + "/extend", body: body}
	s.call(ctx, h, o, r, o.readLease)
}

// release is DELETE /leases/{id}.
func (s *Stand) release(ctx context.Context, h *history, o *op) {
	o.Kind = opRelease
	s.call(ctx, h, o, request{method: http.MethodDelete, path: "/leases/" + o.Lease}, nil)
}

// claim is POST /guarded/{resource}/claim with the token; it returns what it read.
func (s *Stand) claim(ctx context.Context, h *history, o *op) (value string) {
	o.Kind = opClaim
	r := request{method: http.MethodPost, path: guardedPath(o.Resource) + "/claim", header: o.tokenHeader()}
	s.call(ctx, h, o, r, func(a *answer) { value = o.readRecord(a) })
	return value
}

// put is PUT /guarded/{resource} with the token.
func (s *Stand) put(ctx context.Context, h *history, o *op, value string) {
	o.Kind, o.Value = opPut, contentOf(value)
	r := request{method: http.MethodPut, path: guardedPath(o.Resource), header: o.tokenHeader(), body: marshal(value)}
	s.call(ctx, h, o, r, func(a *answer) {
		written := o.Value
		o.readRecord(a)
		if a.status == http.StatusOK && o.Value != written {
			a.status = -1 // an answer that belongs to another request; no check accepts it
		}
		o.Value = written
	})
}

// readRecord keeps what a record or a refusal says.
func (o *op) readRecord(a *answer) (value string) {
	switch a.status {
	case http.StatusOK:
		var record wire.Record
		a.into(&record)
		if len(record.Value) > 0 && json.Unmarshal(record.Value, &value) != nil {
			a.status = 0
		}
		o.Value = contentOf(value)
	case http.StatusPreconditionFailed:
		var refusal wire.Problem
		a.into(&refusal)
		if refusal.StaleDetails == nil {
			a.status = 0
			break
		}
		o.Highest = refusal.Highest
	}
	return value
}

func (o *op) tokenHeader() [2]string {
	return [2]string{wire.HeaderFencingToken, strconv.FormatInt(o.Token, 10)}
}

func guardedPath(resource string) string { return "/guarded/" + url.PathEscape(resource) }

func marshal(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // the runner's own structs
	}
	return string(text)
}

func milliseconds(d time.Duration) *int64 {
	ms := d.Milliseconds()
	return &ms
}
