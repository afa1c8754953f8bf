package api_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/sets"
	"github.com/fencelock/fencelock/storage/boltguard"
	"github.com/fencelock/fencelock/storage/boltstore"
)

// newRealService serves a Locker over the embedded node, and its guard.
func newRealService(t *testing.T, change ...func(*api.Options)) *service {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "test.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	guard, err := boltguard.New(db)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = guard.Close() })
	store, err := boltstore.New(db, boltstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	embedded, err := replica.New(t.Context(), "embedded", store, replica.Options{Bootstrap: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = embedded.Close() })
	return serveNode(t, embedded, append(change, func(o *api.Options) { o.Guard = guard })...)
}

// serveNode serves a Locker over one node.
func serveNode(t *testing.T, one node.Node, change ...func(*api.Options)) *service {
	t.Helper()
	cfg := sets.Config{MaxTTL: maxTTL, NodeTimeout: 5 * time.Second}
	locker, err := sets.New(cfg, []node.Node{one})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = locker.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	eventually(t, "the node votes", func() bool { return locker.Status().Ready })
	return newService(t, nil, append(change, func(o *api.Options) { o.Service = locker })...)
}

func tokenHeader(l wire.Lease) string {
	return "Fencing-Token: " + strconv.FormatInt(l.FencingToken, 10)
}

func TestRealLife(t *testing.T) {
	s := newRealService(t)
	s.call("GET", "/readyz", "").wants(http.StatusOK)
	first := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"orders/42","holder":"w1","ttl_ms":20000,"metadata":[1]}`).wants(http.StatusCreated))
	if first.TTLMS != 20000 || first.ValidityMS <= 0 || first.ValidityMS >= 20000 || first.Holder != "w1" || string(first.Metadata) != "[1]" || first.MaxHoldRemainingMS != nil {
		t.Errorf("lease %+v", first)
	}
	held := s.call("POST", "/locks", `{"resource":"orders/42"}`).wants(http.StatusConflict).problem("lock-held")
	want(t, "holder", held.Holder, "w1")
	want(t, "token", held.FencingToken, first.FencingToken)

	lock := decode[wire.Lock](s.call("GET", "/locks/orders%2F42", "").wants(http.StatusOK))
	if !lock.Held || lock.FencingToken != first.FencingToken || *lock.RemainingMS <= 0 || string(lock.Metadata) != "[1]" {
		t.Errorf("lock %+v", lock)
	}
	lease := decode[wire.Lease](s.call("GET", "/leases/current", "", "Fencelock-Lease: "+first.LeaseID).wants(http.StatusOK))
	want(t, "token", lease.FencingToken, first.FencingToken)
	lease = decode[wire.Lease](s.call("POST", "/leases/current/extend", `{"ttl_ms":40000}`, "Fencelock-Lease: "+first.LeaseID).wants(http.StatusOK))
	if lease.TTLMS != 40000 || lease.ValidityMS <= 20000 || lease.FencingToken != first.FencingToken {
		t.Errorf("extended lease %+v", lease)
	}

	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+first.LeaseID).wants(http.StatusNoContent)
	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+first.LeaseID).wants(http.StatusNotFound).problem("lease-not-held")
	s.call("GET", "/leases/current", "", "Fencelock-Lease: "+first.LeaseID).wants(http.StatusNotFound).problem("lease-not-held")
	if decode[wire.Lock](s.call("GET", "/locks/orders/42", "").wants(http.StatusOK)).Held {
		t.Error("the lock is held after its release")
	}
	second := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"orders/42"}`).wants(http.StatusCreated))
	if second.FencingToken <= first.FencingToken {
		t.Errorf("token %d after %d", second.FencingToken, first.FencingToken)
	}
	s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: "+first.LeaseID).wants(http.StatusNotFound).problem("lease-not-held")
	s.breaks("orders/42").wants(http.StatusNoContent)
	s.breaks("orders/42").wants(http.StatusNotFound).problem("lock-not-held")
	s.call("GET", "/leases/current", "", "Fencelock-Lease: "+second.LeaseID).wants(http.StatusNotFound)
}

// Under an Idempotency-Key only the wait may differ: whoever asks for other terms would
// otherwise work under those of an earlier request.
func TestRealKeyWithAnotherBody(t *testing.T) {
	t.Parallel()
	s := newRealService(t)
	const key = "Idempotency-Key: k"
	for name, first := range map[string]string{
		"one":     `"resource":"a"`,
		"several": `"resources":["b","c"]`,
		"a slot":  `"resource":"d","slots":2`,
	} {
		first += `,"ttl_ms":60000` // which a busy machine does not outlast
		t.Run(name, func(t *testing.T) {
			granted := decode[wire.Lease](s.call("POST", "/locks", "{"+first+"}", key+name[:1]).wants(http.StatusCreated))
			for _, other := range []string{`"holder":"w"`, `"metadata":1`, `"min_hold_ms":100`, `"max_hold_ms":90000`} {
				s.call("POST", "/locks", "{"+first+","+other+"}", key+name[:1]).wants(http.StatusUnprocessableEntity).problem("idempotency-mismatch")
			}
			shorter := strings.Replace(first, "60000", "20000", 1)
			s.call("POST", "/locks", "{"+shorter+"}", key+name[:1]).wants(http.StatusUnprocessableEntity).problem("idempotency-mismatch")
			for _, same := range []string{"", `,"wait_ms":100`} {
				again := decode[wire.Lease](s.call("POST", "/locks", "{"+first+same+"}", key+name[:1]).wants(http.StatusOK))
				want(t, "lease", again.LeaseID, granted.LeaseID)
			}
		})
	}
}

// A caller that hangs up leaves no lease and no waiter, but for the lease whose answer was on its
// way before the server could see that: nobody can tell such a caller from one that reads it.
func TestRealHangUpLeavesNothing(t *testing.T) {
	s := newRealService(t)
	for i := range 50 {
		resource := fmt.Sprintf("r%d", i%5)
		sent := make(chan struct{})
		close(sent)
		body := `{"resource":"` + resource + `","ttl_ms":60000,"wait_ms":60000}`
		rawRequest(t, s, body, sent)
	}
	eventually(t, "only what was answered is left behind", func() bool {
		held, waiters := 0, 0
		for i := range 5 {
			lock := decode[wire.Lock](s.call("GET", fmt.Sprintf("/locks/r%d", i), ""))
			waiters += lock.Waiters
			if lock.Held {
				held++
			}
		}
		log := s.log.String()
		ended := strings.Count(log, `"method":"POST","route":"/locks","status":`)
		return ended == 50 && waiters == 0 && held == strings.Count(log, `"method":"POST","route":"/locks","status":201`)
	})
}

func TestRealGuard(t *testing.T) {
	s := newRealService(t)
	s.call("GET", "/guarded/a/b", "").wants(http.StatusNotFound).problem("record-not-found")
	old := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"a/b"}`).wants(http.StatusCreated))
	s.breaks("a/b").wants(http.StatusNoContent)
	young := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"a/b"}`).wants(http.StatusCreated))

	claimed := decode[wire.Record](s.call("POST", "/guarded/a/b", "", tokenHeader(young)).wants(http.StatusOK))
	if claimed.Version != 0 || string(claimed.Value) != "null" || claimed.HighestToken != young.FencingToken {
		t.Errorf("claimed record %+v", claimed)
	}
	// The claim alone refuses the older holder's write: rule 15.
	stale := s.call("PUT", "/guarded/a/b", `{"by":"old"}`, tokenHeader(old)).wants(http.StatusPreconditionFailed).problem("stale-token")
	if stale.Presented != old.FencingToken || stale.HighestToken != young.FencingToken {
		t.Errorf("refusal %+v", stale)
	}
	for version := range 3 {
		record := decode[wire.Record](s.call("PUT", "/guarded/a%2Fb", fmt.Sprintf(`{"n":%d}`, version), tokenHeader(young)).wants(http.StatusOK))
		want(t, "version", record.Version, int64(version+1))
	}
	read := decode[wire.Record](s.call("GET", "/guarded/a/b", "").wants(http.StatusOK))
	want(t, "value", string(read.Value), `{"n":2}`)
	history := decode[wire.HistoryPage](s.call("GET", "/history?resource=a/b&limit=5", "").wants(http.StatusOK))
	if len(history.Attempts) != 5 || history.Attempts[3].Accepted || history.Attempts[3].HighestToken != young.FencingToken || history.Attempts[4].Kind != "claim" {
		t.Errorf("history %+v", history)
	}
}

// Values that JSON allows and some storages do not like must not be a 500.
func TestRealGuardTakesAnyJSON(t *testing.T) {
	s := newRealService(t)
	for _, value := range []string{`"\u0000"`, `1e999999`, `-0`, `{"":{"":[]}}`, `"` + strings.Repeat("é", 30000) + `"`, `0.1e-400`} {
		s.call("PUT", "/guarded/a", value, "Fencing-Token: 1").wants(http.StatusOK)
	}
}

func TestRealList(t *testing.T) {
	s := newRealService(t)
	for i := range 25 {
		s.call("POST", "/locks", fmt.Sprintf(`{"resource":"p/%d"}`, i)).wants(http.StatusCreated)
		s.call("POST", "/locks", fmt.Sprintf(`{"resource":"q/%d"}`, i)).wants(http.StatusCreated)
	}
	seen := map[string]bool{}
	for cursor, pages := "", 0; ; pages++ {
		page := decode[wire.LockPage](s.call("GET", "/locks?prefix=p/&limit=10&cursor="+cursor, "").wants(http.StatusOK))
		for _, lock := range page.Locks {
			seen[lock.Resource] = true
			if !lock.Held || !strings.HasPrefix(lock.Resource, "p/") {
				t.Errorf("lock %+v", lock)
			}
		}
		if cursor = page.NextCursor; cursor == "" || pages > 100 {
			break
		}
	}
	want(t, "locks listed", len(seen), 25)
	s.call("GET", "/locks?cursor=nonsense", "").refusedField("cursor")
}

func TestRealLeaseIDs(t *testing.T) {
	s := newRealService(t)
	lease := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"a"}`).wants(http.StatusCreated))
	for _, id := range []string{"x", lease.LeaseID + "A", lease.LeaseID[:len(lease.LeaseID)-2], "A" + lease.LeaseID, "%00", "%FF", lease.LeaseID + "%0A", lease.LeaseID + "=", strings.Repeat("A", 5000), "%2F", "a%2Fb"} {
		s.call("GET", "/leases/current", "", "Fencelock-Lease: "+id).wants(http.StatusNotFound).problem("lease-not-held")
		s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+id).wants(http.StatusNotFound).problem("lease-not-held")
		s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: "+id).wants(http.StatusNotFound).problem("lease-not-held")
	}
	s.call("GET", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID).wants(http.StatusOK)
}
