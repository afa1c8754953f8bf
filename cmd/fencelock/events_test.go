package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/server"
	"github.com/fencelock/fencelock/internal/testenv"
)

// heard is a server-sent event with the time at which it came.
type heard struct {
	kind string
	wire.Event
	at time.Time
}

// listen reads a server's events in the background; the channel ends with the stream.
func (p *process) listen(path string) <-chan heard {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.url+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	p.wants(resp, http.StatusOK)
	all := make(chan heard, 10_000)
	var reading sync.WaitGroup
	p.t.Cleanup(reading.Wait) // the test's context has ended by then
	reading.Go(func() {
		defer close(all)
		defer func() { _ = resp.Body.Close() }()
		var e heard
		for lines := testenv.Lines(resp.Body); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "event":
				e.kind = value
			case "data":
				if err := json.Unmarshal([]byte(value), &e.Event); err != nil {
					p.t.Errorf("data %s: %v", value, err)
				}
				e.at = time.Now()
				all <- e
				e = heard{}
			}
		}
	})
	return all
}

// tells waits for an event of the kind about the resource (or node). It skips other events.
func tells(t *testing.T, all <-chan heard, kind wire.EventKind, about string) heard {
	t.Helper()
	late := time.After(30 * time.Second)
	for {
		select {
		case e, ok := <-all:
			if !ok {
				t.Fatalf("the stream ended before %s of %s", kind, about)
			}
			if e.kind == string(kind) && (e.Resource == about || e.Node == about) {
				return e
			}
		case <-late:
			t.Fatalf("no %s of %s", kind, about)
		}
	}
}

// TestEventsOfSeveralServers listens at one server to what clients do at
// another, while a node is down.
func TestEventsOfSeveralServers(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3)
	servers := startServers(t, 2, nodes)
	before := servers[1].acquire(`{"resource":"before","ttl_ms":2000}`)
	all := servers[0].listen("/events")
	servers[1].until("its events are passed on", func() bool {
		var lease wire.Lease
		servers[1].ask(&lease, "POST", "/locks", `{"resource":"first","ttl_ms":100}`)
		select {
		case e := <-all:
			return e.Resource == "first"
		case <-time.After(100 * time.Millisecond):
			return false
		}
	})

	machine := testenv.MeasureLateness(t)
	lease := servers[1].acquire(`{"resource":"a","holder":"w1"}`)
	sent := time.Now()
	e := tells(t, all, wire.EventGranted, "a")
	if took := e.at.Sub(sent); took > time.Second+4*machine.Longest() {
		t.Errorf("the word came after %s on a machine that is late by %s", took, machine.Longest())
	}
	if e.FencingToken != lease.FencingToken || e.Holder != "w1" {
		t.Errorf("%+v", e)
	}
	servers[0].breaks("a")
	tells(t, all, wire.EventBroken, "a")
	if e = tells(t, all, wire.EventExpired, "before"); e.FencingToken != before.FencingToken {
		t.Errorf("%+v, want token %d", e, before.FencingToken)
	}

	nodes[0].Kill() // one of those that the words go over
	if e = tells(t, all, wire.EventNode, nodes[0].Addr()+"/0"); e.State != "unreachable" || e.Was != "voting" {
		t.Errorf("%+v", e)
	}
	lease = servers[1].acquire(`{"resource":"b","ttl_ms":2000}`)
	tells(t, all, wire.EventGranted, "b")
	if e = tells(t, all, wire.EventExpired, "b"); e.FencingToken != lease.FencingToken {
		t.Errorf("%+v, want token %d", e, lease.FencingToken)
	}

	// A server that stops ends its streams; nobody waits for their readers.
	begun := time.Now()
	servers[0].Signal(syscall.SIGTERM)
	for range all { // until the end
	}
	if code := servers[0].exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(begun); took > server.DrainTimeout/2 {
		t.Errorf("the server took %s to stop", took)
	}
}
