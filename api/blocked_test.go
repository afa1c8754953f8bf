package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
)

// scene is holders that hold and wait, at a service with an embedded node. boss may do everything, and reader may
// read what begins with in/.
type scene struct {
	*service
	waits sync.WaitGroup
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{service: newRealService(t, withAccess(t, line("boss", "admin=*"), line("reader", "read=in/")))}
	t.Cleanup(s.waits.Wait)
	return s
}

// holds has a holder take a resource.
func (s *scene) holds(holder, resource string) {
	s.t.Helper()
	s.call("POST", "/locks", fmt.Sprintf(`{"resource":%q,"holder":%q}`, resource, holder), bearer("boss")).wants(http.StatusCreated)
}

// waitsFor has a holder wait for a resource until the end of the test, and returns when it is the n-th in the queue.
func (s *scene) waitsFor(holder, resource string, n int) {
	s.t.Helper()
	body := fmt.Sprintf(`{"resource":%q,"holder":%q,"wait_ms":600000}`, resource, holder)
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/locks", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	name, value, _ := strings.Cut(bearer("boss"), ": ")
	req.Header.Set(name, value)
	s.waits.Go(func() {
		if resp, err := s.client.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	})
	eventually(s.t, holder+" waits for "+resource, func() bool {
		return decode[wire.Lock](s.call("GET", "/locks/"+resource, "", bearer("boss")).wants(http.StatusOK)).Waiters == n
	})
}

func (s *scene) blocked(query, caller string) wire.Blocked {
	s.t.Helper()
	return decode[wire.Blocked](s.call("GET", "/blocked"+query, "", bearer(caller)).wants(http.StatusOK))
}

func holdersOf(b wire.Blocked) (holders []string) {
	for _, h := range b.Holders {
		holders = append(holders, h.Holder)
	}
	return holders
}

// The response has a chain to its end, and does not call it a deadlock.
func TestBlockedByAChain(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.holds("a", "in/x")
	s.holds("b", "out/y")
	s.holds("", "in/bare")
	s.waitsFor("b", "in/x", 1)
	s.waitsFor("c", "out/y", 1)
	s.waitsFor("c", "in/x", 2)

	b := s.blocked("?name=c", "boss")
	if got := holdersOf(b); !slices.Equal(got, []string{"c", "a", "b"}) || len(b.Deadlocks) > 0 || len(b.Locks) > 0 || b.Unlabelled != 1 || b.Truncated {
		t.Errorf("%v: %+v", got, b)
	}
	waits := b.Holders[0].Waits
	if len(waits) != 2 || waits[0].Resource != "in/x" || waits[0].HeldBy != "a" || waits[0].Position != 2 || waits[0].FencingToken == 0 || waits[1].HeldBy != "b" {
		t.Errorf("waits %+v", waits)
	}
	if holds := b.Holders[1].Holds; len(holds) != 1 || holds[0].Resource != "in/x" || holds[0].RemainingMS <= 0 || holds[0].Waiters != 2 {
		t.Errorf("holds %+v", holds)
	}
	if b = s.blocked("?name=out%2Fy", "boss"); len(b.Locks) != 1 || *b.Locks[0].Holder != "b" || !slices.Equal(holdersOf(b), []string{"b", "a"}) {
		t.Errorf("a resource: %+v", b)
	}
	if b = s.blocked("", "boss"); len(b.Holders) != 3 || len(b.Deadlocks) > 0 {
		t.Errorf("all: %+v", b)
	}
	// The reader sees what it may read.
	if b = s.blocked("?name=c", "reader"); !slices.Equal(holdersOf(b), []string{"c", "a"}) || len(b.Holders[0].Waits) != 1 {
		t.Errorf("a reader: %+v", b)
	}
	if b = s.blocked("?name=out%2Fy", "reader"); len(b.Locks) > 0 || len(b.Holders) > 0 {
		t.Errorf("a hidden resource: %+v", b)
	}
}

// A deadlock is named for each of its members and for whoever waits for it, and the lease that it says to break
// resolves it.
func TestBlockedByADeadlock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for holder, resource := range map[string]string{"a": "in/x", "b": "in/y", "c": "in/z"} {
		s.holds(holder, resource)
	}
	s.waitsFor("a", "in/y", 1)
	s.waitsFor("b", "in/z", 1)
	if b := s.blocked("", "boss"); len(b.Deadlocks) > 0 {
		t.Errorf("an open chain: %+v", b.Deadlocks)
	}
	s.waitsFor("c", "in/x", 1)
	s.waitsFor("d", "in/x", 2)
	for _, name := range []string{"", "?name=a", "?name=b", "?name=c", "?name=d", "?name=in%2Fx"} {
		b := s.blocked(name, "reader")
		if len(b.Deadlocks) != 1 {
			t.Fatalf("%q: %+v", name, b)
		}
		d := b.Deadlocks[0]
		var circle []string
		for _, wait := range d.Waits {
			circle = append(circle, wait.Holder+" "+wait.Resource+" "+wait.HeldBy)
		}
		if want := []string{"c in/x a", "a in/y b", "b in/z c"}; !slices.Equal(circle, want) || d.Break.Resource != "in/z" || d.Break.Holder != "c" {
			t.Errorf("%q: %v, to break %+v", name, circle, d.Break)
		}
	}
	lease := s.blocked("", "boss").Deadlocks[0].Break
	s.call("POST", "/breaks", fmt.Sprintf(`{"resource":%q,"fencing_token":%d}`, lease.Resource, lease.FencingToken), bearer("boss")).wants(http.StatusNoContent)
	eventually(t, "the deadlock is resolved", func() bool { return len(s.blocked("", "boss").Deadlocks) == 0 })
}

func TestBlockedRefusesBadNames(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, query := range []string{"?name=a%00", "?name=" + strings.Repeat("a", 257), "?resource=a"} {
		s.call("GET", "/blocked"+query, "", bearer("boss")).wants(http.StatusBadRequest).problem("invalid-request")
	}
}
