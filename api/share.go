package api

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// share bounds how much of a common resource one caller may use at a time. Its zero value with max set is
// ready for use.
type share struct {
	max int

	mu    sync.Mutex
	taken map[string]int // by caller; no zeros
}

// take reports whether the caller may use one more. If so, call give later.
func (s *share) take(caller string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[caller] >= s.max {
		return false
	}
	if s.taken == nil {
		s.taken = make(map[string]int)
	}
	s.taken[caller]++
	return true
}

func (s *share) give(caller string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[caller]--; s.taken[caller] == 0 {
		delete(s.taken, caller)
	}
}

// within lets h serve at most max requests of a caller at a time.
func (s *share) within(tooMany error, h handler) handler {
	return func(w *exchange, r *http.Request) error {
		caller := shareholder(w, r)
		if !s.take(caller) {
			return tooMany
		}
		defer s.give(caller)
		return h(w, r)
	}
}

// callerBits is how many bits of an IPv6 address identify a caller, because a host usually has a whole /64.
const callerBits = 64

// shareholder returns the caller's name or, without access control, the address from which it calls.
func shareholder(w *exchange, r *http.Request) string {
	if who := w.who; who != nil {
		return "name " + who.Name()
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || addr.Unmap().Is4() {
		return host
	}
	network, _ := addr.Prefix(callerBits) // cannot fail: an IPv6 address has more bits
	return network.String()
}
