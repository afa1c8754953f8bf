package api

import (
	"errors"
	"net/http"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// activity is GET /activity.
func (s *Server) activity(w http.ResponseWriter, _ *http.Request) error {
	hour := s.leases.activity.Summary(time.Now(), s.mayRead(w))
	body := wire.Activity{
		Minutes:     make([]wire.ActivityMinute, len(hour.Minutes)),
		Contended:   make([]wire.ContendedResource, len(hour.Contended)),
		LongestHeld: make([]wire.HeldResource, len(hour.Held)),
	}
	for i, m := range hour.Minutes {
		body.Minutes[i] = wire.ActivityMinute{Start: m.Start.UTC(), Granted: m.Granted, Waited: m.Waited, RefusedWrites: m.Refused}
	}
	for i, c := range hour.Contended {
		body.Contended[i] = wire.ContendedResource{Resource: c.Resource, Requests: c.Requests, WaitedMS: millisDown(c.Waited)}
	}
	for i, h := range hour.Held {
		body.LongestHeld[i] = wire.HeldResource{Resource: h.Resource, HeldMS: millisDown(h.For)}
	}
	return s.write(w, http.StatusOK, wire.TypeJSON, body)
}

// remember notes how an acquire went that took so long, for people.
func (l *lifecycle) remember(req *lockcore.AcquireRequest, outcome string, lease *lockcore.Lease, err error, took time.Duration) {
	now := time.Now()
	waited := took
	if outcome == outcomeGranted {
		l.activity.Granted(now, max(1, len(lease.Parts)))
		waited = lease.Waited
	}
	switch {
	case outcome == outcomeHeld:
		waited = 0
	case req.Wait == 0 || waited < publishWaitAfter || outcome != outcomeGranted && !waitEnded(outcome):
		return
	}
	for _, resource := range inTheWay(req, err) {
		l.activity.Found(now, resource, waited)
	}
}

// inTheWay are the resources that an acquire did not find free: as far as its refusal names
// the one, else all.
func inTheWay(req *lockcore.AcquireRequest, err error) []string {
	if held, ok := errors.AsType[*lockcore.HeldError](err); ok {
		return []string{held.Resource}
	}
	if timeout, ok := errors.AsType[*lockcore.WaitTimeoutError](err); ok {
		return []string{timeout.Resource}
	}
	if req.Resources == nil {
		return []string{req.Resource}
	}
	return req.Resources
}

// waitEnded says whether a refusal ends a wait for a resource that others held.
func waitEnded(outcome string) bool {
	return outcome == outcomeTimeout || outcome == outcomePolled || outcome == outcomeGone
}
