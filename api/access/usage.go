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

// usage counts what one name uses at this server. It outlives the file's versions.
type usage struct {
	requests *rate.Limiter

	mu      sync.Mutex
	waiting int
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
	return &LimitError{Limit: ErrRequestLimit, Max: i.limits.requests, Retry: max(wait, time.Millisecond)}
}

// retryLater is when to try again for a place in the queue or a lease: a guess.
const retryLater = time.Second

// Wait counts a request that is about to wait; done must be called when it waits
// no more. The error is a *LimitError; then nothing was counted.
func (i *Identity) Wait() (done func(), err error) {
	u := i.usage
	u.mu.Lock()
	defer u.mu.Unlock()
	if i.limits.waiters > 0 && u.waiting >= i.limits.waiters {
		return nil, &LimitError{Limit: ErrWaiterLimit, Max: float64(i.limits.waiters), Retry: retryLater}
	}
	u.waiting++
	return u.done, nil
}

func (u *usage) done() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting--
}

// MaxHeld is how many leases the caller may hold at this server; 0 for any number.
func (i *Identity) MaxHeld() int { return i.limits.held }

// TooManyHeld refuses a caller that holds MaxHeld leases.
func (i *Identity) TooManyHeld() *LimitError {
	return &LimitError{Limit: ErrLeaseLimit, Max: float64(i.limits.held), Retry: retryLater}
}
