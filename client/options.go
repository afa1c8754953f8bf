package client

import (
	"encoding/json"
	"math"
	"time"
)

// forever is a wait without an end.
const forever time.Duration = math.MaxInt64

// DoOption is an option of Do: every AcquireOption, every KeepOption, and a slice of type AcquireOptions.
type DoOption interface{ applyToDo(o *doOptions) }

// doOptions are the options of a Do.
type doOptions struct {
	acquisition
	keeping
}

func doOptionsOf(opts []DoOption) doOptions {
	o := doOptions{acquisition: acquisitionOf(nil)}
	for _, opt := range opts {
		opt.applyToDo(&o)
	}
	return o
}

// AcquireOption is an option of Acquire and Do. The service decides what no option sets.
type AcquireOption func(*acquisition)

func (opt AcquireOption) applyToDo(o *doOptions) { opt(&o.acquisition) }

// AcquireOptions is a slice of options, for settings that the calls of a program share. The slice is one option
// of Do; with three dots, its elements are options of Acquire.
//
//	var settings = client.AcquireOptions{client.TTL(10 * time.Second), client.Wait(time.Second)}
//	locks.Do(ctx, "orders/42", work, settings)
//	locks.Acquire(ctx, "orders/42", settings...)
type AcquireOptions []AcquireOption

func (opts AcquireOptions) applyToDo(o *doOptions) {
	for _, opt := range opts {
		opt(&o.acquisition)
	}
}

// acquisition is the settings of an acquire. A zero field leaves the decision to the service or the client,
// except wait.
type acquisition struct {
	ttl, minHold, maxHold time.Duration
	slots                 *int           // nil for the resource itself
	wait                  time.Duration  // forever by default
	patience              *time.Duration // nil for the client's
	holder                string
	metadata              json.RawMessage
}

func acquisitionOf(opts []AcquireOption) acquisition {
	a := acquisition{wait: forever}
	for _, opt := range opts {
		opt(&a)
	}
	return a
}

// semaphore returns the number of slots; 0 for the resource itself.
func (a acquisition) semaphore() int {
	if a.slots == nil {
		return 0
	}
	return *a.slots
}

// TTL sets the time to live of the lease, which every extension restarts: whole milliseconds, 100 ms to 24 h,
// and at most the service's FENCELOCK_MAX_TTL. Without this option, or with 0, the service's default applies.
func TTL(d time.Duration) AcquireOption { return func(a *acquisition) { a.ttl = d } }

// Wait limits the wait in the queue. With 0 a call does not wait, like TryAcquire and TryDo. The call ends at
// most a second after the wait, even if no server responds. Default: as long as the context allows.
func Wait(d time.Duration) AcquireOption { return func(a *acquisition) { a.wait = d } }

// Patience replaces the client's WithPatience for one call: how long the call is repeated while no server can
// serve it. It counts in addition to the Wait. So TryDo with a Patience survives the restart of a server
// although it does not wait in the queue.
func Patience(d time.Duration) AcquireOption { return func(a *acquisition) { a.patience = &d } }

// Slots requests one of n slots of the resource, 1 to 32: a semaphore. At most n leases exist at once, if all
// requests name the same n. A slot is itself a resource, with its own tokens: Lease.Resource is its name, and
// Lease.Slot its number. Give name and token to storage that checks tokens. Requests get the slots in the order
// of their arrival. A request for several resources cannot use slots.
func Slots(n int) AcquireOption { return func(a *acquisition) { a.slots = &n } }

// MinHold keeps the resource taken for d from the grant, even if the lease is released before: whole
// milliseconds, at most the TTL. With it, a job that every host starts by its clock runs only once, if d is
// longer than the difference of the clocks. If the holder dies, the resource becomes free with the TTL.
func MinHold(d time.Duration) AcquireOption { return func(a *acquisition) { a.minHold = d } }

// MaxHold sets how long after the grant extensions end: whole milliseconds, at least the TTL, and at most the
// service's FENCELOCK_MAX_HOLD. Default: the service's.
func MaxHold(d time.Duration) AcquireOption { return func(a *acquisition) { a.maxHold = d } }

// Holder sets the label that the lease shows to all callers, at most 256 bytes of valid UTF-8. Default: the
// client's (WithHolder).
func Holder(label string) AcquireOption { return func(a *acquisition) { a.holder = label } }

// Metadata sets a JSON value that the lease shows to all callers, at most 4096 bytes.
func Metadata(value json.RawMessage) AcquireOption {
	return func(a *acquisition) { a.metadata = value }
}

// KeepOption is an option of KeepAlive and Do.
type KeepOption func(*keeping)

func (opt KeepOption) applyToDo(o *doOptions) { opt(&o.keeping) }

// keeping is the settings of how a lease is kept alive.
type keeping struct {
	margin   time.Duration
	extended func(*Lease)
}

func keepingOf(opts []KeepOption) keeping {
	var k keeping
	for _, opt := range opts {
		opt(&k)
	}
	return k
}

// Margin sets how long before the end of validity the work's context is cancelled; it must not be negative.
// Default: a tenth of the TTL; maximum: half of the TTL.
func Margin(d time.Duration) KeepOption { return func(k *keeping) { k.margin = d } }

// OnExtend sets a function that is called after each extension. The goroutine that keeps the lease alive calls
// it, so it must not block.
func OnExtend(f func(*Lease)) KeepOption { return func(k *keeping) { k.extended = f } }
