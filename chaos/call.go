package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// answerWithin is how long a client waits for a response, in addition to the wait that it requested.
const answerWithin = 3 * time.Second

// newTransport makes the transport that all clients share. It finds a server's address by its name and keeps
// connections alive.
func newTransport(servers []*server) *http.Transport {
	addresses := map[string]string{}
	for _, s := range servers {
		addresses[s.name+":80"] = s.Addr()
	}
	dial := func(ctx context.Context, _, name string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addresses[name])
	}
	return &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 512}
}

// answer is a response; status is 0 if none arrived.
type answer struct {
	status int
	body   []byte
}

// into decodes the body into v. A malformed body counts as a lost response.
func (a *answer) into(v any) {
	if err := json.Unmarshal(a.body, v); err != nil {
		a.status = 0
	}
}

// request is what a client sends.
type request struct {
	method, path, body string
	header             http.Header // nil for none
	wait               time.Duration
}

// send sends a request to a server. An incomplete response counts as none.
func (s *Stand) send(ctx context.Context, server int, r request) answer {
	ctx, cancel := context.WithTimeout(ctx, answerWithin+r.wait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, "http://"+s.servers[server].name+r.path, strings.NewReader(r.body))
	if err != nil {
		panic(err) // the runner's own mistake
	}
	maps.Copy(req.Header, r.header)
	if r.body != "" {
		req.Header.Set("Content-Type", wire.TypeJSON)
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

// call performs one operation: it sends the request, records the times, and keeps the response.
func (s *Stand) call(ctx context.Context, h *history, o *op, r request, read func(*answer)) {
	o.Sent = s.now()
	var a answer
	if operation, fits := r.operation(); fits && o.Client >= 0 && o.Client%2 == 1 {
		a = s.sendInBatch(ctx, o.Server, operation)
	} else {
		a = s.send(ctx, o.Server, r)
	}
	if o.lost {
		a = answer{}
	}
	if read != nil && a.status != 0 {
		read(&a)
	}
	o.Done, o.Status = s.now(), a.status
	h.add(o)
}

// acquire is POST /locks.
func (s *Stand) acquire(ctx context.Context, h *history, o *op, w *wish, wait time.Duration) {
	o.Kind, o.Wait, o.TTL, o.MinHold, o.Names, o.Several = opAcquire, wait, w.ttl, w.minHold, w.names(), len(w.resources) > 1
	o.Resource = o.Names[0]
	r := request{method: http.MethodPost, path: "/locks", body: w.body(wait), wait: wait, header: http.Header{}}
	switch {
	case o.Key != "" && s.config.sabotage.otherKey && w.tries > 1:
		r.header.Set(wire.HeaderIdempotencyKey, o.Key+"-again")
	case o.Key != "":
		r.header.Set(wire.HeaderIdempotencyKey, o.Key)
	}
	if w.poll && wait > pollFor {
		r.wait, o.Wait, o.Poll = pollFor, pollFor, true
		r.header.Set(wire.HeaderPrefer, fmt.Sprintf("wait=%d", int(pollFor.Seconds())))
	}
	s.call(ctx, h, o, r, o.readLease)
}

// cancel is POST /cancel.
func (s *Stand) cancel(ctx context.Context, h *history, o *op, w *wish) {
	o.Kind, o.Names = opCancel, w.names()
	o.Resource = o.Names[0]
	r := request{method: http.MethodPost, path: "/cancel", body: w.body(w.wait), header: http.Header{}}
	r.header.Set(wire.HeaderIdempotencyKey, o.Key)
	s.call(ctx, h, o, r, nil)
}

// readLease records a grant. Its validity counts from when the request was sent.
func (o *op) readLease(a *answer) {
	if a.status != http.StatusCreated && a.status != http.StatusOK {
		return
	}
	var lease wire.Lease
	if a.into(&lease); a.status == 0 {
		return
	}
	o.Lease, o.Validity = lease.LeaseID, time.Duration(lease.WaitedMS+lease.ValidityMS)*time.Millisecond
	if len(lease.Resources) == 0 {
		lease.Resources = wire.LeaseParts{{Resource: lease.Resource, FencingToken: lease.FencingToken}}
	}
	o.Parts = nil
	for _, p := range lease.Resources {
		o.Parts = append(o.Parts, leased{Resource: p.Resource, Token: p.FencingToken})
	}
	o.Resource, o.Token = o.Parts[0].Resource, o.Parts[0].Token
}

// extend is POST /leases/current/extend.
func (s *Stand) extend(ctx context.Context, h *history, o *op, ttl time.Duration) {
	o.Kind, o.TTL = opExtend, ttl
	body := marshal(wire.ExtendRequest{TTLMS: milliseconds(ttl)})
	r := request{method: http.MethodPost, path: "/leases/current/extend", body: body, header: leaseHeader(o.Lease)}
	s.call(ctx, h, o, r, o.readLease)
}

// release is DELETE /leases/current.
func (s *Stand) release(ctx context.Context, h *history, o *op) {
	o.Kind = opRelease
	if s.config.sabotage.keepLease && o.Client >= 0 {
		o.Sent, o.Done, o.Status = s.now(), s.now(), http.StatusNoContent
		h.add(o)
		return
	}
	s.call(ctx, h, o, request{method: http.MethodDelete, path: "/leases/current", header: leaseHeader(o.Lease)}, func(a *answer) {
		var released wire.Released
		if a.status == http.StatusOK {
			a.into(&released)
		}
		o.TakenFor = time.Duration(released.TakenForMS) * time.Millisecond
	})
}

// leaseHeader names a lease.
func leaseHeader(id string) http.Header {
	return http.Header{wire.HeaderLease: {id}}
}

// claim is POST /guarded/{resource} with the token; it returns what it read.
func (s *Stand) claim(ctx context.Context, h *history, o *op) (value string) {
	o.Kind = opClaim
	r := request{method: http.MethodPost, path: guardedPath(o.Resource), header: o.tokenHeader()}
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
			a.status = -1 // a response to another request; no check accepts it
		}
		o.Value = written
	})
}

// readRecord records the content of a guarded record or of a refusal.
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
		o.Highest = refusal.HighestToken
	}
	return value
}

func (o *op) tokenHeader() http.Header {
	return http.Header{wire.HeaderFencingToken: {strconv.FormatInt(o.Token, 10)}}
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
