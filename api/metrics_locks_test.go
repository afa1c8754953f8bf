package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// series wants these lines among those of the metric, as /metrics shows them.
func (s *service) series(metric string, lines ...string) {
	s.t.Helper()
	text, err := testutil.CollectAndFormat(s.registry, expfmt.TypeTextPlain, metric)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, line := range lines {
		if !strings.Contains(string(text), "\n"+line+"\n") {
			s.t.Errorf("%s is missing in:\n%s", line, text)
		}
	}
}

func (s *service) eventuallySeries(metric, line string) {
	s.t.Helper()
	eventually(s.t, line, func() bool {
		text, err := testutil.CollectAndFormat(s.registry, expfmt.TypeTextPlain, metric)
		return err == nil && strings.Contains(string(text), "\n"+line+"\n")
	})
}

func TestAcquisitionsAreCountedByOutcome(t *testing.T) {
	errs := map[string]error{
		"held": &lockcore.HeldError{Resource: "r"}, "wait_timeout": &lockcore.WaitTimeoutError{HeldError: lockcore.HeldError{Resource: "r"}, Position: 1}, "no_quorum": &lockcore.QuorumError{},
		"too_many_waiters": lockcore.ErrTooManyWaiters, "stopping": lockcore.ErrStopping,
		"idempotency_mismatch": lockcore.ErrIdempotencyMismatch, "tokens_exhausted": lockcore.ErrTokensExhausted,
		"invalid": &lockcore.FieldError{Field: "x", Reason: "y"}, "error": errors.New("boom"),
		"gone": &lockcore.QuorumError{Cause: context.Canceled},
	}
	var give error
	f := &fake{acquire: func(context.Context, lockcore.Request) (lockcore.Lease, error) {
		return lockcore.Lease{Resource: "r", ID: leaseID, Token: 3, TTL: time.Minute}, give
	}}
	s := newService(t, f)
	for outcome, err := range errs {
		give = err
		s.call("POST", "/locks", `{"resource":"r"}`)
		s.series("fencelock_acquisitions_total", `fencelock_acquisitions_total{outcome="`+outcome+`",prefix=""} 1`)
	}
	give = nil
	s.call("POST", "/locks", `{"resource":"r"}`).wants(http.StatusCreated)
	s.series("fencelock_acquisitions_total", `fencelock_acquisitions_total{outcome="granted",prefix=""} 1`)
	s.series("fencelock_wait_seconds", `fencelock_wait_seconds_count{prefix=""} 1`) // a refusal that nobody waited for is no wait
	give = errs["wait_timeout"]
	s.call("POST", "/locks", `{"resource":"r","wait_ms":10}`)
	s.series("fencelock_wait_seconds", `fencelock_wait_seconds_count{prefix=""} 2`)
	s.series("fencelock_leases_held", `fencelock_leases_held 1`)
}

func TestPrefixesLabelTheMetrics(t *testing.T) {
	f := &fake{acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
		lease := lockcore.Lease{Resource: req.Resource, ID: leaseID, Token: 3, TTL: time.Minute}
		for _, resource := range req.Resources {
			lease.Parts = append(lease.Parts, lockcore.LeasePart{Resource: resource, Token: 3})
			lease.Resource, lease.Token = "", 0
		}
		return lease, nil
	}}
	s := newService(t, f, func(o *api.Options) { o.MetricsPrefixes = []string{"orders/", "orders/eu/"} })
	for _, body := range []string{`{"resource":"orders/1"}`, `{"resource":"orders/eu/1"}`, `{"resource":"x"}`, `{"resources":["orders/eu/7","z"]}`} {
		s.call("POST", "/locks", body)
	}
	s.series("fencelock_acquisitions_total",
		`fencelock_acquisitions_total{outcome="granted",prefix="orders/"} 1`,
		`fencelock_acquisitions_total{outcome="granted",prefix="orders/eu/"} 2`,
		`fencelock_acquisitions_total{outcome="granted",prefix="other"} 1`)
}

func TestLostLeasesAreCounted(t *testing.T) {
	t.Parallel()
	var next string
	f := &fake{
		acquire: func(context.Context, lockcore.Request) (lockcore.Lease, error) {
			return lockcore.Lease{Resource: "r", ID: next, Token: 3, TTL: time.Millisecond}, nil
		},
		extend:  func(string, time.Duration) (lockcore.Lease, error) { return lockcore.Lease{}, lockcore.ErrNotHeld },
		release: func(context.Context, string) error { return lockcore.ErrNotHeld },
		endOf: func(id string) (lockcore.End, error) {
			switch id {
			case "expired":
				return lockcore.EndExpired, nil
			case "elsewhere":
				return lockcore.EndNone, nil
			case "away":
				return 0, &lockcore.QuorumError{}
			}
			return lockcore.EndUnknown, nil
		},
	}
	hub, option := withEvents(t)
	s := newService(t, f, option)
	reader, err := hub.Listen("", true)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	take := func(id string) {
		next = id
		s.call("POST", "/locks", `{"resource":"r"}`).wants(http.StatusCreated)
	}
	// The holder comes too late before the server has looked: counted once.
	take("late")
	s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: late").wants(http.StatusNotFound)
	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: late").wants(http.StatusNotFound)
	take("later")
	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: later").wants(http.StatusNotFound)
	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: later").wants(http.StatusNotFound) // a repetition is no loss
	for _, id := range []string{"expired", "elsewhere", "unknown", "away"} {
		take(id)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.handler.Run(ctx) })
	defer running.Wait()
	defer cancel()
	s.eventuallySeries("fencelock_leases_unseen_total", `fencelock_leases_unseen_total 2`)
	s.eventuallySeries("fencelock_leases_held", `fencelock_leases_held 0`)
	s.series("fencelock_leases_lost_total",
		`fencelock_leases_lost_total{found="expiry"} 1`,
		`fencelock_leases_lost_total{found="extend"} 1`,
		`fencelock_leases_lost_total{found="release"} 1`)
	expired, _, _ := reader.Next(nil, 100, func(e *events.Event) bool { return e.Kind == wire.EventExpired })
	if len(expired) != 1 || expired[0].Resource != "orders/42" {
		t.Errorf("published %+v, want one expiry", expired)
	}
}

func TestHoldTimesAndReleases(t *testing.T) {
	f := &fake{
		acquire: func(context.Context, lockcore.Request) (lockcore.Lease, error) {
			return lockcore.Lease{Resource: "r", ID: leaseID, Token: 3, TTL: time.Minute}, nil
		},
		extend: func(id string, _ time.Duration) (lockcore.Lease, error) {
			return lockcore.Lease{Resource: "r", ID: id, Token: 3, TTL: time.Minute}, nil
		},
		release: func(context.Context, string) error { return nil },
	}
	s := newService(t, f)
	s.call("POST", "/locks", `{"resource":"r"}`).wants(http.StatusCreated)
	s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: "+leaseID).wants(http.StatusOK)
	s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: of-another-server").wants(http.StatusOK)
	s.series("fencelock_leases_held", `fencelock_leases_held 2`)
	s.call("DELETE", "/leases/current", "", "Fencelock-Lease: "+leaseID).wants(http.StatusNoContent)
	s.series("fencelock_leases_held", `fencelock_leases_held 1`)
	s.series("fencelock_hold_seconds", `fencelock_hold_seconds_count{prefix=""} 1`)
	s.series("fencelock_releases_total", `fencelock_releases_total{outcome="released"} 1`)
	s.series("fencelock_extensions_total", `fencelock_extensions_total{outcome="granted"} 2`)
}

func TestRefusedStaleWritesAreCounted(t *testing.T) {
	stale := &fencing.StaleTokenError{Resource: "r", Presented: 1, Highest: 2}
	f := &fake{
		write: func(context.Context, string, fencing.Token, json.RawMessage) (fencing.Record, error) {
			return fencing.Record{}, stale
		},
		claim: func(context.Context, string, fencing.Token) (fencing.Record, error) { return fencing.Record{}, stale },
		brk:   func(string, fencing.Token) error { return nil },
	}
	s := newService(t, f)
	s.call("PUT", "/guarded/r", `1`, "Fencing-Token: 1").wants(http.StatusPreconditionFailed)
	s.call("POST", "/guarded/r", ``, "Fencing-Token: 1").wants(http.StatusPreconditionFailed)
	s.breaks("r").wants(http.StatusNoContent)
	s.series("fencelock_stale_writes_refused_total",
		`fencelock_stale_writes_refused_total{operation="claim"} 1`,
		`fencelock_stale_writes_refused_total{operation="write"} 1`)
	s.series("fencelock_breaks_total", `fencelock_breaks_total 1`)
}
