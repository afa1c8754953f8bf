package access

import (
	"cmp"
	"math"
	"time"

	"golang.org/x/time/rate"
)

// limits of one name at one server; 0 is none.
type limits struct {
	requests float64 // a second
	waiters  int
	held     int
	records  int
	bytes    int
}

// usage counts what one name uses at this server. It outlives the file's versions.
type usage struct {
	requests *rate.Limiter
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

// MaxWaiters is how many requests of the caller may wait at this server; 0 for a share.
func (i *Identity) MaxWaiters() int { return i.limits.waiters }

// TooManyWaiters refuses a caller that has so many places in queues, the maximum.
func TooManyWaiters(most int) *LimitError {
	return &LimitError{Limit: ErrWaiterLimit, Max: float64(most), Retry: retryLater}
}

// MaxHeld is how many leases the caller may hold at this server; 0 for any number.
func (i *Identity) MaxHeld() int { return i.limits.held }

// TooManyHeld refuses a caller that holds MaxHeld leases.
func (i *Identity) TooManyHeld() *LimitError {
	return &LimitError{Limit: ErrLeaseLimit, Max: float64(i.limits.held), Retry: retryLater}
}

// MaxRecords is how many guarded records the caller may keep through this server, and how many bytes in
// them; 0 for any number.
func (i *Identity) MaxRecords() (records, bytes int) { return i.limits.records, i.limits.bytes }

// TooManyRecords refuses a caller that keeps MaxRecords.
func (i *Identity) TooManyRecords() *LimitError {
	return &LimitError{Limit: ErrRecordLimit, Max: float64(cmp.Or(i.limits.records, i.limits.bytes)), Retry: retryLater}
}
