package api_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
)

// The last hour has what happened, and names only what its reader may read.
func TestActivity(t *testing.T) {
	t.Parallel()
	s := newRealService(t, withAccess(t, line("boss", "acquire=*"), line("w", "read=in/")))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.handler.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })

	acquire := func(body string, status int) answered {
		t.Helper()
		return s.call("POST", "/locks", body, bearer("boss")).wants(status)
	}
	acquire(`{"resources":["in/a","in/b"]}`, http.StatusCreated)
	acquire(`{"resource":"in/a"}`, http.StatusConflict)
	acquire(`{"resource":"in/a"}`, http.StatusConflict)
	acquire(`{"resources":["in/unused","in/a"]}`, http.StatusConflict) // in/a is in the way, and only that
	acquire(`{"resource":"in/b","wait_ms":120}`, http.StatusConflict)
	acquire(`{"resource":"in/free","wait_ms":1000}`, http.StatusCreated) // it did not wait
	acquire(`{"resource":"in/short","ttl_ms":1500}`, http.StatusCreated)
	acquire(`{"resource":"in/short","wait_ms":10000}`, http.StatusCreated) // when that lease has expired
	out := decode[wire.Lease](acquire(`{"resource":"out/c"}`, http.StatusCreated))
	acquire(`{"resource":"out/c"}`, http.StatusConflict)
	acquire(`{"resource":"in/b","wait_ms":60}`, http.StatusConflict) // out/c is held meanwhile
	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+out.LeaseID, bearer("boss")).wants(http.StatusNoContent)
	token := "Fencing-Token: " + strconv.FormatInt(out.FencingToken, 10)
	s.call("PUT", "/guarded/out/c", "1", token, bearer("boss")).wants(http.StatusOK)
	s.call("PUT", "/guarded/out/c", "1", "Fencing-Token: 1", bearer("boss")).wants(http.StatusPreconditionFailed)

	seen := func(who string) (sum wire.ActivityMinute, hour wire.Activity) {
		t.Helper()
		hour = decode[wire.Activity](s.call("GET", "/activity", "", bearer(who)).wants(http.StatusOK))
		for _, m := range hour.Minutes {
			sum.Granted, sum.Waited, sum.RefusedWrites = sum.Granted+m.Granted, sum.Waited+m.Waited, sum.RefusedWrites+m.RefusedWrites
		}
		return sum, hour
	}
	sum, hour := seen("boss")
	if sum.Granted != 6 || sum.Waited != 7 || sum.RefusedWrites != 1 || len(hour.Minutes) != 60 {
		t.Errorf("%d minutes with %+v", len(hour.Minutes), sum)
	}
	requests := map[string]int64{}
	for i, c := range hour.Contended {
		requests[c.Resource] = c.Requests
		if waits := map[string]int64{"in/short": 100, "in/b": 150}[c.Resource]; c.WaitedMS < waits || waits == 0 && c.WaitedMS != 0 {
			t.Errorf("%s was waited for %d ms", c.Resource, c.WaitedMS)
		}
		if i > 0 && c.WaitedMS > hour.Contended[i-1].WaitedMS {
			t.Errorf("contended are %+v", hour.Contended)
		}
	}
	if want := map[string]int64{"in/a": 3, "in/b": 2, "in/short": 1, "out/c": 1}; !maps.Equal(requests, want) {
		t.Errorf("contended are %+v, want requests %v", hour.Contended, want)
	}
	held := func(who string) map[string]int64 {
		_, hour := seen(who)
		held := map[string]int64{}
		for _, h := range hour.LongestHeld {
			held[h.Resource] = h.HeldMS
		}
		return held
	}
	eventually(t, "the lease that expired is listed", func() bool { return held("boss")["in/short"] >= 1500 })
	if h := held("boss"); len(h) != 2 || h["out/c"] < 60 || h["out/c"] > 10_000 {
		t.Errorf("held are %v", h)
	}
	if h := held("w"); len(h) != 1 || h["in/short"] == 0 {
		t.Errorf("w sees that %v were held", h)
	}
	_, hour = seen("w")
	if len(hour.Contended) != 3 || slices.ContainsFunc(hour.Contended, func(c wire.ContendedResource) bool { return c.Resource == "out/c" }) {
		t.Errorf("w sees %+v", hour.Contended)
	}
}
