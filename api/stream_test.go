package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
)

// withEvents gives a service a hub that runs.
func withEvents(t *testing.T) (*events.Hub, func(*api.Options)) {
	t.Helper()
	hub := events.NewHub()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = hub.Run(ctx) })
	t.Cleanup(func() {
		hub.Stop()
		cancel()
		running.Wait()
	})
	return hub, func(o *api.Options) { o.Events = hub }
}

// told is a server-sent event.
type told struct {
	id, kind string
	wire.Event
}

// listener reads GET /events. Everything it reads is held against openapi.yaml.
type listener struct {
	t    *testing.T
	resp *http.Response
	all  chan told
	text strings.Builder
	stop context.CancelFunc
}

func listen(t *testing.T, s *service, path string, header ...string) *listener {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("GET %s answered %d %s", path, resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	l := &listener{t: t, resp: resp, all: make(chan told, 10000), stop: cancel}
	var reading sync.WaitGroup
	reading.Go(func() { l.read(loadContract(t).doc.Components.Schemas["Event"].Value) })
	t.Cleanup(func() {
		cancel()
		reading.Wait()
	})
	return l
}

// comparedEvents is how many events of a stream are compared with openapi.yaml.
const comparedEvents = 100

func (l *listener) read(schema *openapi3.Schema) {
	defer close(l.all)
	defer func() { _ = l.resp.Body.Close() }()
	lines := testenv.Lines(l.resp.Body)
	var e told
	compared := 0
	for lines.Scan() {
		l.text.WriteString(lines.Text() + "\n")
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			e.id = value
		case "event":
			e.kind = value
		case "data":
			var body any
			if err := json.Unmarshal([]byte(value), &body); err != nil {
				l.t.Errorf("data %s: %v", value, err)
			}
			if compared++; compared > comparedEvents {
				// thousands more like these
			} else if err := schema.VisitJSON(body, openapi3.EnableJSONSchema2020()); err != nil {
				l.t.Errorf("data %s breaks openapi.yaml: %v", value, err)
			}
			_ = json.Unmarshal([]byte(value), &e.Event)
		case "":
			if e.kind != "" {
				l.all <- e
			}
			e = told{}
		}
	}
}

// next waits for an event and wants it to be of this kind.
func (l *listener) next(kind wire.EventKind) told {
	l.t.Helper()
	select {
	case e, ok := <-l.all:
		if !ok {
			l.t.Fatalf("the stream ended, want %s", kind)
		}
		if e.kind != string(kind) {
			l.t.Fatalf("%s %+v, want %s", e.kind, e.Event, kind)
		}
		return e
	case <-time.After(20 * time.Second):
		l.t.Fatalf("no event, want %s", kind)
		return told{}
	}
}

func (l *listener) ends() {
	l.t.Helper()
	select {
	case e, ok := <-l.all:
		if ok {
			l.t.Fatalf("%s %+v, want the end", e.kind, e.Event)
		}
	case <-time.After(20 * time.Second):
		l.t.Fatal("the stream does not end")
	}
}

// TestRealEvents runs what clients do over the real Locker, and wants every
// event of it, with nothing secret.
func TestRealEvents(t *testing.T) {
	_, option := withEvents(t)
	s := newRealService(t, option)
	l := listen(t, s, "/events")
	first := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"orders/1","holder":"w1","ttl_ms":20000,"metadata":{"m":1}}`, "Idempotency-Key: k").wants(201))
	s.call("POST", "/locks", `{"resource":"orders/1","holder":"w1","ttl_ms":20000,"metadata":{"m":1}}`, "Idempotency-Key: k").wants(200) // tells nothing
	e := l.next(wire.EventGranted)
	if e.Resource != "orders/1" || e.FencingToken != first.FencingToken || e.Holder != "w1" || e.TTLMS != 20000 || e.id == "" || e.At.IsZero() {
		t.Errorf("%+v", e)
	}
	s.call("POST", "/leases/current/extend", `{"ttl_ms":30000}`, "Fencelock-Lease: "+first.LeaseID).wants(200)
	if e = l.next(wire.EventExtended); e.TTLMS != 30000 || e.FencingToken != first.FencingToken || e.Holder != "w1" {
		t.Errorf("%+v", e)
	}

	var waiting sync.WaitGroup
	var second wire.Lease
	waiting.Go(func() {
		second = decode[wire.Lease](s.call("POST", "/locks", `{"resource":"orders/1","holder":"w2","wait_ms":60000}`).wants(201))
	})
	if e = l.next(wire.EventWaiting); e.Holder != "w2" || e.Resource != "orders/1" {
		t.Errorf("%+v", e)
	}
	s.call("POST", "/locks", `{"resource":"orders/1","holder":"w3","wait_ms":200}`).wants(409)
	if e = l.next(wire.EventWaiting); e.Holder != "w3" {
		t.Errorf("%+v", e)
	}
	if e = l.next(wire.EventLeft); e.Holder != "w3" {
		t.Errorf("%+v", e)
	}

	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+first.LeaseID).wants(204)
	waiting.Wait()
	kinds := map[string]told{}
	for range 2 { // which is told first is chance
		e := <-l.all
		kinds[e.kind] = e
	}
	if r, g := kinds["released"], kinds["granted"]; r.FencingToken != first.FencingToken || r.Holder != "w1" || g.FencingToken != second.FencingToken || g.Holder != "w2" {
		t.Errorf("%+v", kinds)
	}

	s.call("PUT", "/guarded/orders/1", `1`, tokenHeader(second)).wants(200)
	s.call("PUT", "/guarded/orders/1", `2`, tokenHeader(first)).wants(412)
	if e = l.next(wire.EventStaleToken); e.FencingToken != first.FencingToken || e.HighestToken != second.FencingToken || e.Attempt != "write" {
		t.Errorf("%+v", e)
	}
	s.call("POST", "/guarded/orders/1", "", tokenHeader(first)).wants(412)
	if e = l.next(wire.EventStaleToken); e.Attempt != "claim" {
		t.Errorf("%+v", e)
	}
	s.breaks("orders/1").wants(204)
	if e = l.next(wire.EventBroken); e.FencingToken != second.FencingToken || e.Holder != "w2" {
		t.Errorf("%+v", e)
	}
	several := decode[wire.Lease](s.call("POST", "/locks", `{"resources":["b","a"],"holder":"w4"}`).wants(201))
	for i, resource := range []string{"a", "b"} {
		if e = l.next(wire.EventGranted); e.Resource != resource || e.FencingToken != several.Resources[i].FencingToken {
			t.Errorf("%+v", e)
		}
	}
	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+several.LeaseID).wants(204)
	l.next(wire.EventReleased)
	l.next(wire.EventReleased)

	s.call("POST", "/locks", `{"resource":"c"}`, "Idempotency-Key: c").wants(201)
	cancelled := l.next(wire.EventGranted)
	s.call("POST", "/cancel", `{"resource":"c"}`, "Idempotency-Key: c").wants(204)
	if e = l.next(wire.EventReleased); e.Resource != "c" || e.FencingToken != cancelled.FencingToken {
		t.Errorf("cancelled: %+v", e)
	}
	half := decode[wire.Lease](s.call("POST", "/locks", `{"resources":["d","e"]}`).wants(201))
	l.next(wire.EventGranted)
	l.next(wire.EventGranted)
	s.breaks("d").wants(204)
	l.next(wire.EventBroken)
	s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: "+half.LeaseID).wants(404)
	if e = l.next(wire.EventReleased); e.Resource != "e" || e.FencingToken != half.Resources[1].FencingToken {
		t.Errorf("ended by an extend: %+v", e)
	}
	l.stop()
	for range l.all {
	}
	for _, secret := range []string{first.LeaseID, second.LeaseID, several.LeaseID, first.LeaseID[2:29], `"m":1`} {
		if strings.Contains(l.text.String(), secret) {
			t.Errorf("the stream tells %s:\n%s", secret, l.text.String())
		}
	}
}

func publish(hub *events.Hub, resource string, token int64) {
	hub.Publish(events.Event{Kind: wire.EventGranted, Event: wire.Event{Resource: resource, FencingToken: token}})
}

func TestEventsAreFiltered(t *testing.T) {
	hub, option := withEvents(t)
	path := filepath.Join(t.TempDir(), "access")
	write := func(rules string) {
		if err := os.WriteFile(path, []byte(line("w", rules)+"end\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("read=* none=a/secret")
	keeper, err := access.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, &fake{}, option, func(o *api.Options) { o.Access = keeper })
	byPrefix := listen(t, s, "/events?prefix=a/", bearer("w"))
	byName := listen(t, s, "/events?resource=b", bearer("w"))
	for i, resource := range []string{"a/secret", "b", "a/1", "a", "c"} {
		publish(hub, resource, int64(i+1))
	}
	want(t, "by prefix", byPrefix.next(wire.EventGranted).Resource, "a/1")
	want(t, "by name", byName.next(wire.EventGranted).Resource, "b")
	write("read=* none=a/secret none=a/1") // taken away while it listens
	if err := keeper.Load(); err != nil {
		t.Fatal(err)
	}
	publish(hub, "a/1", 10)
	publish(hub, "a/2", 11)
	hub.Publish(events.Event{Kind: wire.EventNode, Event: wire.Event{Node: "n", State: "voting", Was: "refused"}})
	want(t, "by prefix", byPrefix.next(wire.EventGranted).Resource, "a/2")
	want(t, "node", byPrefix.next(wire.EventNode).Node, "n")
	want(t, "node", byName.next(wire.EventNode).Node, "n")
}

func TestEventsResume(t *testing.T) {
	hub, option := withEvents(t)
	s := newService(t, &fake{}, option)
	l := listen(t, s, "/events")
	for token := int64(1); token <= 3; token++ {
		publish(hub, "a", token)
	}
	second := told{}
	for token := int64(1); token <= 3; token++ {
		if e := l.next(wire.EventGranted); e.FencingToken != token {
			t.Fatalf("%+v, want token %d", e, token)
		} else if token == 2 {
			second = e
		}
	}
	l.stop()
	publish(hub, "a", 4) // nobody listens, and it is kept all the same
	l = listen(t, s, "/events", "Last-Event-ID: "+second.id)
	for token := int64(3); token <= 4; token++ {
		want(t, "token", l.next(wire.EventGranted).FencingToken, token)
	}
	l = listen(t, s, "/events?recent=2")
	want(t, "token", l.next(wire.EventGranted).FencingToken, 3)
	want(t, "token", l.next(wire.EventGranted).FencingToken, 4)

	l = listen(t, s, "/events?resource=a", "Last-Event-ID: another-2")
	l.next(wire.EventGap)
	want(t, "token", l.next(wire.EventGranted).FencingToken, 1)

	for token := int64(5); token <= 6000; token++ {
		publish(hub, "b", token)
	}
	l = listen(t, s, "/events", "Last-Event-ID: "+second.id)
	l.next(wire.EventGap)
	e := l.next(wire.EventGranted)
	for token := e.FencingToken + 1; token <= 6000; token++ {
		want(t, "token", l.next(wire.EventGranted).FencingToken, token)
	}
}

// A reader that does not read is cut off, and holds nobody up.
func TestSlowReaderIsDropped(t *testing.T) {
	t.Parallel()
	hub, option := withEvents(t)
	s := newService(t, &fake{}, option)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // otherwise it reads for ever what is not cut off
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	const many = 20_000 // more than the hub keeps and the connection takes
	published := make(chan struct{})
	go func() {
		defer close(published)
		for range many {
			publish(hub, strings.Repeat("x", 256), 1)
		}
	}()
	select {
	case <-published:
	case <-ctx.Done():
		t.Fatal("the reader holds up who publishes")
	}
	// What had been sent is read now, and then the word, and the end.
	last := ""
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if kind, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			last = kind
		}
	}
	want(t, "last event", last, string(wire.EventGap))
}

func TestStoppingServerEndsStreams(t *testing.T) {
	hub, option := withEvents(t)
	s := newService(t, &fake{}, option)
	l := listen(t, s, "/events")
	hub.Stop()
	l.ends()
}

func TestTooManyListeners(t *testing.T) {
	hub, option := withEvents(t)
	s := newService(t, &fake{}, option)
	var readers []*events.Reader
	for i := range 256 {
		r, err := hub.Listen(strconv.Itoa(i), true)
		if err != nil {
			t.Fatal(err)
		}
		readers = append(readers, r)
	}
	s.call("GET", "/events", "").wants(http.StatusServiceUnavailable).problem("too-many-listeners")
	readers[0].Close()
	listen(t, s, "/events")
}

// One caller leaves room for others, and is told of its own limit.
func TestListenerLimit(t *testing.T) {
	_, option := withEvents(t)
	s := newService(t, &fake{}, option)
	for range 64 {
		listen(t, s, "/events")
	}
	s.call("GET", "/events", "").wants(http.StatusTooManyRequests).problem("listener-limit")
}

func TestEventsRefusals(t *testing.T) {
	_, option := withEvents(t)
	s := newService(t, &fake{}, option)
	s.call("GET", "/events?prefx=a", "").refusedField("prefx")
	s.call("GET", "/events?recent=1001", "").refusedField("recent")
	s.call("GET", "/events?recent=x", "").refusedField("recent")
	s.call("GET", "/events?prefix=%00", "").refusedField("prefix")
	s.call("GET", "/events", "", "Last-Event-ID: "+strings.Repeat("x", 65)).refusedField("Last-Event-ID")
	s.call("HEAD", "/events", "").wants(http.StatusOK)
}

// What a failed call leaves untold.
func TestFailuresTellNothing(t *testing.T) {
	hub, option := withEvents(t)
	s := newService(t, &fake{
		acquire: func(context.Context, lockcore.Request) (lockcore.Lease, error) {
			return lockcore.Lease{}, &lockcore.HeldError{Resource: "a", Token: 1}
		},
		extend:  func(string, time.Duration) (lockcore.Lease, error) { return lockcore.Lease{}, lockcore.ErrNotHeld },
		release: func(context.Context, string) error { return lockcore.ErrNotHeld },
		inspect: func(r string) (lockcore.LockState, error) { return lockcore.LockState{Resource: r}, nil },
		brk:     func(string, fencing.Token) error { return lockcore.ErrNotHeld },
		write: func(context.Context, string, fencing.Token, json.RawMessage) (fencing.Record, error) {
			return fencing.Record{}, fmt.Errorf("%w", fencing.ErrGuardUnavailable)
		},
	}, option)
	l := listen(t, s, "/events")
	s.call("POST", "/locks", `{"resource":"a"}`).wants(409)
	s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: "+leaseID).wants(404)
	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+leaseID).wants(404)
	s.breaks("a").wants(404)
	s.call("PUT", "/guarded/a", "1", "Fencing-Token: 1").wants(503)
	publish(hub, "the end", 1)
	want(t, "first event", l.next(wire.EventGranted).Resource, "the end")
}
