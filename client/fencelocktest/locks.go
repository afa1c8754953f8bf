package fencelocktest

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// lease is a live lease, or one that has ended: then it holds nothing.
type lease struct {
	id    string
	key   string
	slot  int
	parts wire.LeaseParts
	asked wire.AcquireRequest
	since time.Time
}

// waiter is a request in the queue.
type waiter struct {
	request   wire.AcquireRequest
	key       string
	since     time.Time
	granted   chan *lease
	cancelled chan struct{}
}

func (w *waiter) wants(resource string) bool {
	return slices.Contains(resourcesOf(w.request), resource)
}

// resourcesOf are the resources that a request names.
func resourcesOf(r wire.AcquireRequest) []string {
	if r.Resource != "" {
		return []string{r.Resource}
	}
	return slices.Sorted(slices.Values(r.Resources))
}

// free returns what a request may have now: its resources, or the name of a slot. Reserved
// are those of requests before it in the queue.
func (s *Server) free(r wire.AcquireRequest, reserved map[string]bool) (names []string, slot int, ok bool) {
	if r.Slots == 0 {
		names = resourcesOf(r)
		for _, name := range names {
			if s.holders[name] != nil || reserved[name] {
				return nil, 0, false
			}
		}
		return names, 0, true
	}
	for n := 1; n <= r.Slots; n++ {
		name := fmt.Sprintf("%s#slot%d", r.Resource, n)
		if s.holders[name] == nil && !reserved[name] {
			return []string{name}, n, true
		}
	}
	return nil, 0, false
}

// blocking is a lease of one of the resources.
func (s *Server) blocking(resources []string) *lease {
	for _, name := range resources {
		if l := s.holders[name]; l != nil {
			return l
		}
	}
	return nil
}

// grant makes a lease. Its tokens are larger than all before.
func (s *Server) grant(r wire.AcquireRequest, names []string, key string) *lease {
	l := &lease{id: rand.Text(), key: key, asked: r, since: time.Now()}
	for _, name := range names {
		s.minted++
		l.parts = append(l.parts, wire.LeasePart{Resource: name, FencingToken: s.minted})
		s.holders[name] = l
	}
	s.leases[l.id] = l
	if key != "" {
		s.keys[key] = l
	}
	s.changed()
	return l
}

// end ends a lease, and grants the next in the queue.
func (s *Server) end(l *lease) {
	delete(s.leases, l.id)
	for _, p := range l.parts {
		if s.holders[p.Resource] == l {
			delete(s.holders, p.Resource)
		}
	}
	s.changed()
	s.wake()
}

// wake grants what may be granted, in the order of arrival.
func (s *Server) wake() {
	reserved := map[string]bool{}
	s.queue = slices.DeleteFunc(s.queue, func(w *waiter) bool {
		names, slot, ok := s.free(w.request, reserved)
		if !ok {
			for _, name := range resourcesOf(w.request) {
				reserved[name] = true
			}
			return false
		}
		l := s.grant(w.request, names, w.key)
		l.slot = slot
		w.granted <- l
		return true
	})
}

// changed wakes the readers of events.
func (s *Server) changed() {
	for reader := range s.readers {
		select {
		case reader <- struct{}{}:
		default:
		}
	}
}

func (s *Server) acquire(w http.ResponseWriter, r *http.Request) {
	var request wire.AcquireRequest
	if !decode(w, r, &request) {
		return
	}
	names := resourcesOf(request)
	if len(names) == 0 || slices.Contains(names, "") || request.Slots > 0 && len(names) > 1 {
		refuse(w, http.StatusBadRequest, "invalid-request", "name a resource")
		return
	}
	key := r.Header.Get(wire.HeaderIdempotencyKey)
	s.mu.Lock()
	if l := s.keys[key]; key != "" && l != nil && s.leases[l.id] == l {
		answer := s.body(l)
		s.mu.Unlock()
		write(w, http.StatusOK, answer)
		return
	}
	s.queue = slices.DeleteFunc(s.queue, func(other *waiter) bool { return key != "" && other.key == key }) // its last poll
	if free, slot, ok := s.free(request, s.reserved()); ok {
		l := s.grant(request, free, key)
		l.slot = slot
		answer := s.body(l)
		s.mu.Unlock()
		write(w, http.StatusCreated, answer)
		return
	}
	s.wait(w, r, request, key)
}

// reserved are the resources that requests in the queue want.
func (s *Server) reserved() map[string]bool {
	reserved := map[string]bool{}
	for _, w := range s.queue {
		for _, name := range resourcesOf(w.request) {
			reserved[name] = true
		}
	}
	return reserved
}

// wait queues a request. It is called with the lock held.
func (s *Server) wait(w http.ResponseWriter, r *http.Request, request wire.AcquireRequest, key string) {
	if request.WaitMS == nil || *request.WaitMS == 0 {
		s.refuseHeld(w, request, "lock-held")
		return
	}
	wait := time.Duration(*request.WaitMS) * time.Millisecond
	if text, ok := strings.CutPrefix(r.Header.Get(wire.HeaderPrefer), "wait="); ok {
		if poll, err := time.ParseDuration(text + "s"); err == nil {
			wait = min(wait, poll)
		}
	}
	me := &waiter{request: request, key: key, since: time.Now(), granted: make(chan *lease, 1), cancelled: make(chan struct{})}
	s.queue = append(s.queue, me)
	s.changed()
	s.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case l := <-me.granted:
		s.mu.Lock()
		answer := s.body(l)
		s.mu.Unlock()
		answer.WaitedMS = time.Since(me.since).Milliseconds()
		write(w, http.StatusCreated, answer)
		return
	case <-timer.C:
	case <-me.cancelled:
	case <-r.Context().Done():
	case <-s.stop:
	}
	s.mu.Lock()
	select {
	case l := <-me.granted: // as it gave up
		if r.Context().Err() == nil {
			answer := s.body(l)
			s.mu.Unlock()
			write(w, http.StatusCreated, answer)
			return
		}
		s.end(l)
	default:
	}
	s.queue = slices.DeleteFunc(s.queue, func(other *waiter) bool { return other == me })
	s.refuseHeld(w, request, "wait-timeout")
}

// refuseHeld says who holds it, and gives the lock back.
func (s *Server) refuseHeld(w http.ResponseWriter, request wire.AcquireRequest, kind string) {
	details := &wire.HeldDetails{}
	resource := request.Resource
	if l := s.blocking(resourcesOf(request)); l != nil {
		details.Holder, details.RemainingMS = l.asked.Holder, s.ttl.Milliseconds()
		for _, p := range l.parts {
			if slices.Contains(resourcesOf(request), p.Resource) {
				resource, details.FencingToken = p.Resource, p.FencingToken
			}
		}
	}
	details.Waiters = len(s.queue)
	s.mu.Unlock()
	problem(w, wire.Problem{Type: wire.ProblemPrefix + kind, Title: "The resource is held", Status: http.StatusConflict, Resource: resource, HeldDetails: details})
}

func (s *Server) cancel(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get(wire.HeaderIdempotencyKey)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = slices.DeleteFunc(s.queue, func(other *waiter) bool {
		if key == "" || other.key != key {
			return false
		}
		close(other.cancelled)
		return true
	})
	if l := s.keys[key]; l != nil && s.leases[l.id] == l {
		s.end(l)
	}
	s.wake()
	w.WriteHeader(http.StatusNoContent)
}

// body is a lease as its holder sees it.
func (s *Server) body(l *lease) wire.Lease {
	ms := s.ttl.Milliseconds()
	answer := wire.Lease{Kind: wire.KindLease, LeaseID: l.id, TTLMS: ms, ValidityMS: ms, Holder: l.asked.Holder, Metadata: l.asked.Metadata, Slot: l.slot}
	if len(l.parts) > 1 {
		answer.Kind, answer.Resources = wire.KindBundle, l.parts
	} else {
		answer.Resource, answer.FencingToken = l.parts[0].Resource, l.parts[0].FencingToken
	}
	if answer.Metadata == nil {
		answer.Metadata = []byte("null")
	}
	return answer
}

// ofLease answers with f, or that the lease has ended.
func (s *Server) ofLease(f func(http.ResponseWriter, *lease)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		l := s.leases[r.Header.Get(wire.HeaderLease)]
		if l == nil {
			refuse(w, http.StatusNotFound, "lease-not-held", "The lease has ended")
			return
		}
		f(w, l)
	}
}

func (s *Server) look(w http.ResponseWriter, l *lease) { write(w, http.StatusOK, s.body(l)) }

func (s *Server) release(w http.ResponseWriter, l *lease) {
	s.end(l)
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) breakLease(w http.ResponseWriter, r *http.Request) {
	var request wire.BreakRequest
	if !decode(w, r, &request) {
		return
	}
	s.mu.Lock()
	l := s.holders[request.Resource]
	var token int64
	if l != nil {
		i := slices.IndexFunc(l.parts, func(p wire.LeasePart) bool { return p.Resource == request.Resource })
		token = l.parts[i].FencingToken
	}
	switch {
	case l == nil:
		s.mu.Unlock()
		refuse(w, http.StatusNotFound, "lock-not-held", "No lease holds the resource")
	case !request.Any && token != request.FencingToken:
		s.mu.Unlock()
		details := &wire.HeldDetails{Holder: l.asked.Holder, FencingToken: token, RemainingMS: s.ttl.Milliseconds()}
		problem(w, wire.Problem{Type: wire.ProblemPrefix + "other-lease", Title: "Another lease holds the resource", Status: http.StatusPreconditionFailed, Resource: request.Resource, HeldDetails: details})
	default:
		s.end(l)
		s.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	}
}

// lock is a resource as anyone sees it.
func (s *Server) lock(resource string) wire.Lock {
	lock := wire.Lock{Resource: resource, Queue: []wire.Waiter{}}
	for _, w := range s.queue {
		if w.wants(resource) {
			lock.Waiters++
			lock.Queue = append(lock.Queue, wire.Waiter{Holder: w.request.Holder, WaitingMS: time.Since(w.since).Milliseconds()})
		}
	}
	l := s.holders[resource]
	if l == nil {
		return lock
	}
	ttl, held := s.ttl.Milliseconds(), time.Since(l.since).Milliseconds()
	lock.Held, lock.Holder, lock.RemainingMS, lock.TTLMS, lock.HeldMS, lock.Metadata = true, &l.asked.Holder, &ttl, &ttl, &held, l.asked.Metadata
	for _, p := range l.parts {
		if p.Resource == resource {
			lock.FencingToken = p.FencingToken
		}
	}
	return lock
}

func (s *Server) inspect(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	write(w, http.StatusOK, s.lock(r.PathValue("resource")))
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	page := wire.LockPage{Locks: []wire.Lock{}}
	for resource := range s.holders {
		if strings.HasPrefix(resource, r.URL.Query().Get("prefix")) {
			page.Locks = append(page.Locks, s.lock(resource))
		}
	}
	slices.SortFunc(page.Locks, func(a, b wire.Lock) int { return strings.Compare(a.Resource, b.Resource) })
	write(w, http.StatusOK, page)
}
