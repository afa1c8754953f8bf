package api

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// share bounds how much of a common resource one caller may have at a time. Its zero
// value with a max is ready.
type share struct {
	max int

	mu    sync.Mutex
	taken map[string]int // by caller; no zeros
}

// take reports whether the caller may have one more; then give must follow.
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

// within has h answer as many requests of a caller at a time as its share is.
func (s *share) within(tooMany error, h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		caller := shareholder(w, r)
		if !s.take(caller) {
			return tooMany
		}
		defer s.give(caller)
		return h(w, r)
	}
}

// callerBits of an IPv6 address tell callers apart: a host mostly has its whole /64.
const callerBits = 64

// shareholder is the caller's name or, without access control, the address that
// it calls from.
func shareholder(w http.ResponseWriter, r *http.Request) string {
	if who := callerOf(w); who != nil {
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
	network, _ := addr.Prefix(callerBits) // an IPv6 address has as many bits
	return network.String()
}
