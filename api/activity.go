package api

import (
	"net/http"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// activity is GET /activity.
func (s *Server) activity(w *exchange, _ *http.Request) error {
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
