package api

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/fencing"
)

// errTooManyRecords refuses a record for which the guard's storage has no room.
var errTooManyRecords = errors.New("the guarded records are at FENCELOCK_MAX_RECORDS or FENCELOCK_MAX_RECORD_BYTES: delete unneeded values, or raise the limit")

// countShare limits counting the guard's records to this fraction (1/20) of the time.
const countShare = 20

// records bounds what the guard's storage keeps, in all and for each caller with limits.
type records struct {
	guard fencing.Guard
	max   fencing.Usage

	counting sync.Mutex // held while a goroutine counts

	mu     sync.Mutex
	known  bool
	kept   fencing.Usage // the result of the last count
	at     time.Time
	took   time.Duration
	owned  map[string]owned // by resource; only records of callers with limits
	owners map[string]fencing.Usage
}

// owned is a record whose last claim or write through this server was by a caller with limits.
type owned struct {
	by    string
	bytes int64
}

func newRecords(guard fencing.Guard, most fencing.Usage, registry prometheus.Registerer) *records {
	r := &records{guard: guard, max: most, owned: map[string]owned{}, owners: map[string]fencing.Usage{}}
	if guard == nil {
		return r
	}
	gauge := func(name, help string, value func() int64) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) }))
	}
	gauge("fencelock_records", "Resources in the guarded records, as this server counted them last.", func() int64 { return r.last().Records })
	gauge("fencelock_record_bytes", "Bytes of the values in the guarded records, as this server counted them last.", func() int64 { return r.last().Bytes })
	gauge("fencelock_records_limit", "FENCELOCK_MAX_RECORDS.", func() int64 { return most.Records })
	gauge("fencelock_record_bytes_limit", "FENCELOCK_MAX_RECORD_BYTES.", func() int64 { return most.Bytes })
	return r
}

func (r *records) last() fencing.Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept
}

// count returns the number and size of the guard's records. It counts again unless the last count is recent
// compared with its duration: the embedded file knows the numbers at once, but a database reads every
// record. While one goroutine counts, others use the previous result. If a count fails, the previous result
// remains.
func (r *records) count(ctx context.Context) fencing.Usage {
	if !r.counting.TryLock() {
		return r.last()
	}
	defer r.counting.Unlock()
	r.mu.Lock()
	recent := r.known && time.Since(r.at) < countShare*r.took
	r.mu.Unlock()
	if recent {
		return r.last()
	}
	ctx, cancel := context.WithTimeout(ctx, guardTimeout)
	defer cancel()
	begun := time.Now()
	usage, err := r.guard.Usage(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.kept = usage
	}
	r.known, r.at, r.took = true, time.Now(), time.Since(begun)
	return r.kept
}

// admit returns errTooManyRecords for a claim, or a write of this many bytes, for which the storage has no
// room. An existing record may always be claimed, and written as long as it does not grow. Concurrent
// requests may exceed the limit together.
func (r *records) admit(ctx context.Context, resource string, bytes int64) error {
	kept := r.count(ctx)
	full, large := kept.Records >= r.max.Records, kept.Bytes+bytes > r.max.Bytes && bytes > 0
	if !full && !large {
		return nil
	}
	record, err := r.guard.Read(ctx, resource)
	if err != nil && !errors.Is(err, fencing.ErrNotFound) {
		return err
	}
	if full && err != nil || large && bytes > int64(len(record.Value)) {
		return errTooManyRecords
	}
	return nil
}

// take counts the record against its caller's limits, and returns a function that undoes this. The error is
// a *access.LimitError. A caller without limits, or nil, owns nothing.
func (r *records) take(who *access.Identity, resource string, bytes int64, kind fencing.AttemptKind) (undo func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, had := r.owned[resource]
	if kind == fencing.KindClaim && had {
		return func() {}, nil // the value and its owner remain
	}
	after := owned{bytes: bytes}
	var mostRecords, mostBytes int
	if who != nil {
		mostRecords, mostBytes = who.MaxRecords()
	}
	if mostRecords > 0 || mostBytes > 0 {
		after.by = who.Name()
	}
	r.replace(resource, before, after)
	back := func() { r.replace(resource, r.owned[resource], before) }
	now := r.owners[after.by]
	if mostRecords > 0 && now.Records > int64(mostRecords) || mostBytes > 0 && now.Bytes > int64(mostBytes) && bytes > 0 {
		back()
		return nil, who.TooManyRecords()
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		back()
	}, nil
}

// replace moves a record from one owner to another; either may be none. The caller holds mu.
func (r *records) replace(resource string, from, to owned) {
	r.own(from, -1)
	r.own(to, +1)
	if to.by == "" {
		delete(r.owned, resource)
	} else {
		r.owned[resource] = to
	}
}

func (r *records) own(o owned, sign int64) {
	if o.by == "" {
		return
	}
	usage := r.owners[o.by]
	usage.Records += sign
	usage.Bytes += sign * o.bytes
	if usage.Records == 0 {
		delete(r.owners, o.by)
	} else {
		r.owners[o.by] = usage
	}
}
