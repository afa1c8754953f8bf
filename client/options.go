package client

import (
	"encoding/json"
	"math"
	"time"
)

// forever is a wait without an end.
const forever time.Duration = math.MaxInt64

// DoOption tunes Do: every AcquireOption and every KeepOption is one.
type DoOption interface{ applyToDo(o *doOptions) }

// doOptions are what a Do asks for.
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

// AcquireOption tunes Acquire and Do. What is left out is left to the service.
type AcquireOption func(*acquisition)

func (opt AcquireOption) applyToDo(o *doOptions) { opt(&o.acquisition) }

// acquisition is what an acquire asks for. The zero value of a field but wait leaves it
// to the service.
type acquisition struct {
	ttl, minHold, maxHold time.Duration
	slots                 int
	wait                  time.Duration // forever by default
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

// TTL is the time to live that the lease gets, and again with every extension: whole
// milliseconds. Default: the service's.
func TTL(d time.Duration) AcquireOption { return func(a *acquisition) { a.ttl = d } }

// Wait limits how long to wait in the queue; 0 does not wait, as TryAcquire and TryDo
// do. The call ends a second after it at most, also while no server responds. Default: as
// long as the context allows.
func Wait(d time.Duration) AcquireOption { return func(a *acquisition) { a.wait = d } }

// Slots asks for one of n slots of the resource, 1 to 32: a semaphore. At most n leases
// exist at once, if all requests name the same n. A slot is a resource of its own, which
// Lease.Resource names and Lease.Slot numbers, with a token of its own: give both to
// storage that checks tokens. Requests get the slots in the order of their arrival.
// A request of several resources has no slots.
func Slots(n int) AcquireOption { return func(a *acquisition) { a.slots = n } }

// MinHold keeps the resource taken for so long from the grant, though the lease is
// released before: whole milliseconds, at most the TTL. A job that is shorter than the
// clocks of the hosts differ then runs once. A holder that dies frees the resource with
// the TTL.
func MinHold(d time.Duration) AcquireOption { return func(a *acquisition) { a.minHold = d } }

// MaxHold ends extensions so long after the grant: whole milliseconds, at least the
// TTL, and not more than the service's FENCELOCK_MAX_HOLD. Default: the service's.
func MaxHold(d time.Duration) AcquireOption { return func(a *acquisition) { a.maxHold = d } }

// Holder is the label that the lease shows to all callers, at most 256 bytes of valid
// UTF-8. Default: the client's (WithHolder).
func Holder(label string) AcquireOption { return func(a *acquisition) { a.holder = label } }

// Metadata is a JSON value that the lease shows to all callers, at most 4096 bytes.
func Metadata(value json.RawMessage) AcquireOption {
	return func(a *acquisition) { a.metadata = value }
}

// KeepOption tunes KeepAlive and Do.
type KeepOption func(*keeping)

func (opt KeepOption) applyToDo(o *doOptions) { opt(&o.keeping) }

// keeping is how a lease is kept alive.
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

// Margin is how long before the end of validity the work's context is cancelled.
// Default: a tenth of the TTL; at most half of it.
func Margin(d time.Duration) KeepOption { return func(k *keeping) { k.margin = d } }

// OnExtend has f called after each extension, by the goroutine that keeps the lease
// alive: it must not block.
func OnExtend(f func(*Lease)) KeepOption { return func(k *keeping) { k.extended = f } }
