package access

import (
	"cmp"
	"math"
	"time"

	"golang.org/x/time/rate"
)

// limits are the limits of one name at one server; 0 means no limit.
type limits struct {
	requests float64 // a second
	waiters  int
	held     int
	records  int
	bytes    int
}

// usage counts the use of one name at this server. It survives changes of the file.
type usage struct {
	requests *rate.Limiter
}

func newUsage() *usage { return &usage{requests: rate.NewLimiter(rate.Inf, 1)} }

// adopt applies the limits in a new version of the access file.
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

// retryLater is an estimate of when to retry for a place in the queue or a lease.
const retryLater = time.Second

// MaxWaiters is the maximum number of resources for which the caller's requests may wait at this server; 0
// means a share.
func (i *Identity) MaxWaiters() int { return i.limits.waiters }

// TooManyWaiters is the error for a caller that has the maximum number of places in queues.
func TooManyWaiters(most int) *LimitError {
	return &LimitError{Limit: ErrWaiterLimit, Max: float64(most), Retry: retryLater}
}

// MaxHeld is the maximum number of resources of the caller's leases at this server; 0 means no limit.
func (i *Identity) MaxHeld() int { return i.limits.held }

// TooManyHeld is the error for a caller whose leases would have more than MaxHeld resources.
func (i *Identity) TooManyHeld() *LimitError {
	return &LimitError{Limit: ErrLeaseLimit, Max: float64(i.limits.held), Retry: retryLater}
}

// MaxRecords is the maximum number of guarded records that the caller may keep through this server, and of
// their bytes; 0 means no limit.
func (i *Identity) MaxRecords() (records, bytes int) { return i.limits.records, i.limits.bytes }

// TooManyRecords is the error for a caller that keeps MaxRecords.
func (i *Identity) TooManyRecords() *LimitError {
	return &LimitError{Limit: ErrRecordLimit, Max: float64(cmp.Or(i.limits.records, i.limits.bytes)), Retry: retryLater}
}
