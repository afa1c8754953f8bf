package access

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limits of one name at one server; 0 is none.
type limits struct {
	requests float64 // a second
	waiters  int
	held     int
}

// usage is what one name uses at this server. It outlives the file's versions.
type usage struct {
	requests *rate.Limiter

	mu       sync.Mutex
	waiting  int
	reserved int // acquires under way
	// held are the leases that this server granted or extended and has not seen
	// end, by lease id, with when they end unless they are extended.
	held map[string]time.Time
}

func newUsage() *usage { return &usage{requests: rate.NewLimiter(rate.Inf, 1)} }

// adopt follows limits that changed with the file.
func (u *usage) adopt(l limits) {
	limit, burst := rate.Inf, 1
	if l.requests > 0 {
		limit, burst = rate.Limit(l.requests), int(math.Ceil(l.requests))
	}
	u.requests.SetLimit(limit)
	u.requests.SetBurst(burst)
}

// Request counts a request. The error is a *LimitError.
func (i *Identity) Request() error {
	if i.limits.requests == 0 {
		return nil
	}
	now := time.Now()
	if i.usage.requests.AllowN(now, 1) {
		return nil
	}
	missing := 1 - i.usage.requests.TokensAt(now)
	wait := time.Duration(missing / i.limits.requests * float64(time.Second))
	return &LimitError{Limit: ErrRequestLimit, Most: i.limits.requests, Retry: max(wait, time.Millisecond)}
}

// retryWaiters is when a place in line may be free: nobody knows.
const retryWaiters = time.Second

// Begin counts an acquire that is about to be made, waiting for its turn or
// not. Unless it returns an error, a *LimitError, End has to follow.
func (i *Identity) Begin(waits bool) error {
	if i.limits.held == 0 && (i.limits.waiters == 0 || !waits) {
		return nil
	}
	u := i.usage
	u.mu.Lock()
	defer u.mu.Unlock()
	if waits && i.limits.waiters > 0 && u.waiting >= i.limits.waiters {
		return &LimitError{Limit: ErrWaiterLimit, Most: float64(i.limits.waiters), Retry: retryWaiters}
	}
	if i.limits.held > 0 && len(u.held)+u.reserved >= i.limits.held {
		if next := u.forget(time.Now()); len(u.held)+u.reserved >= i.limits.held {
			return &LimitError{Limit: ErrLeaseLimit, Most: float64(i.limits.held), Retry: max(next, time.Millisecond)}
		}
	}
	u.reserved++
	if waits {
		u.waiting++
	}
	return nil
}

// forget drops the leases that have ended by themselves, and tells when the
// next one will.
func (u *usage) forget(now time.Time) (next time.Duration) {
	next = retryWaiters
	for id, until := range u.held {
		switch left := until.Sub(now); {
		case left <= 0:
			delete(u.held, id)
		case left < next:
			next = left
		}
	}
	return next
}

// End takes back what Begin counted, and counts the lease that was granted, ""
// for none.
func (i *Identity) End(waits bool, lease string, ttl time.Duration) {
	if i.limits.held == 0 && (i.limits.waiters == 0 || !waits) {
		return
	}
	u := i.usage
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reserved = max(0, u.reserved-1)
	if waits {
		u.waiting = max(0, u.waiting-1)
	}
	if lease != "" && i.limits.held > 0 {
		u.keep(lease, ttl)
	}
}

func (u *usage) keep(lease string, ttl time.Duration) {
	if u.held == nil {
		u.held = make(map[string]time.Time)
	}
	u.held[lease] = time.Now().Add(ttl)
}

// Extended counts a lease, perhaps granted by another server, for its new time.
func (i *Identity) Extended(lease string, ttl time.Duration) {
	if i == nil || i.limits.held == 0 {
		return
	}
	i.usage.mu.Lock()
	defer i.usage.mu.Unlock()
	i.usage.keep(lease, ttl)
}

// Released counts a lease no more.
func (i *Identity) Released(lease string) {
	if i == nil || i.limits.held == 0 {
		return
	}
	i.usage.mu.Lock()
	defer i.usage.mu.Unlock()
	delete(i.usage.held, lease)
}
