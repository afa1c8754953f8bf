package api_test

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
)

// The last hour has what happened, and names only what its reader may read.
func TestActivity(t *testing.T) {
	s := newRealService(t, withAccess(t, line("boss", "acquire=*"), line("w", "read=in/")))
	acquire := func(body string, status int) answered {
		t.Helper()
		return s.call("POST", "/locks", body, bearer("boss")).wants(status)
	}
	acquire(`{"resources":["in/a","in/b"]}`, http.StatusCreated)
	acquire(`{"resource":"in/a"}`, http.StatusConflict)
	acquire(`{"resource":"in/a"}`, http.StatusConflict)
	acquire(`{"resource":"in/b","wait_ms":120}`, http.StatusConflict)
	out := decode[wire.Lease](acquire(`{"resource":"out/c"}`, http.StatusCreated))
	acquire(`{"resource":"out/c"}`, http.StatusConflict)
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
	if sum.Granted != 3 || sum.Waited != 4 || sum.RefusedWrites != 1 || len(hour.Minutes) != 60 {
		t.Errorf("%d minutes with %+v", len(hour.Minutes), sum)
	}
	if c := hour.Contended; len(c) != 3 || c[0].Resource != "in/b" || c[0].WaitedMS < 100 || c[0].Requests != 1 || c[1].Resource != "in/a" || c[1].Requests != 2 || c[1].WaitedMS != 0 {
		t.Errorf("contended are %+v", c)
	}
	if h := hour.LongestHeld; len(h) != 1 || h[0].Resource != "out/c" {
		t.Errorf("held are %+v", h)
	}
	if _, hour = seen("w"); len(hour.Contended) != 2 || len(hour.LongestHeld) != 0 {
		t.Errorf("w sees %+v and %+v", hour.Contended, hour.LongestHeld)
	}
}
