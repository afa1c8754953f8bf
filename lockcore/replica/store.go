package replica

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// UnreachedError means that Open got no response from a Store, for a reason that may pass without a change of
// the configuration: the same call may succeed later.
type UnreachedError struct{ Err error }

func (e *UnreachedError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the last attempt.
func (e *UnreachedError) Unwrap() error { return e.Err }

// Store keeps a replica's rows. Its methods may be called from any goroutine.
type Store interface {
	// Update runs fn in one atomic, serialisable transaction that may write. If it returns nil, fn's writes
	// are durable. After an error none of them is, unless the commit itself failed: then they may be. fn may
	// run several times, and only its last run counts, so it must have no other effects. In earlier runs it
	// may not find existing rows. Update returns the last run's error unchanged. It may refuse, with
	// ErrTooLarge, a transaction that writes more than 500 kB or 1,000 rows. If ctx has no deadline, the store
	// applies its own time limit.
	Update(ctx context.Context, fn func(Tx) error) error
	// View is Update for an fn that writes nothing.
	View(ctx context.Context, fn func(Tx) error) error
	// Listen calls w for notifications of transactions to server, until ctx ends. It reconnects by itself. A
	// notification may get lost.
	Listen(ctx context.Context, server string, w node.Listener)
}

// Growing is a Store whose disk may be full although writes that replace rows succeed.
type Growing interface {
	// Room returns an error if the store has no room for more rows.
	Room() error
}

// Limit is a helper for stores. It returns ctx if that has a deadline, and otherwise a context that ends after
// usual.
func Limit(ctx context.Context, usual time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, usual)
}

// Tx is a transaction. Keys are not empty and at most 16 KiB long. After an error of the store, every
// Get finds nothing, and Update or View returns the error, so the methods need not return errors.
type Tx interface {
	// Get returns a row's value and its remaining time to live. The value is nil exactly if there is no row or
	// its time has passed. The caller must not change it, or keep it after the transaction.
	Get(key string) (value []byte, left time.Duration)
	// Put writes a row that ends after ttl, counted from now; with 0 it never ends. A row never ends early
	// while the store's clock is sound. After a transaction that wrote has found it ended, it never appears
	// again.
	Put(key string, value []byte, ttl time.Duration)
	// Delete removes a row, if it is there.
	Delete(key string)
	// Range returns the first limit rows with from <= key < to, in the order of
	// their keys (bytewise).
	Range(from, to string, limit int) []Row
	// Purge removes every row.
	Purge()
	// Notify calls the listeners of the ticket's server after the transaction has been committed.
	Notify(resource string, ticket node.Ticket)
	// Now returns the store's wall clock, the same for all rows of a transaction.
	Now() time.Time
	// Status names the incarnation of the rows.
	Status() Status
}

// Row is a row of a Range. The rules of Tx.Get for values apply.
type Row struct {
	Key   string
	Value []byte
	Left  time.Duration
}

// Status is the input of the gate (rule 6).
type Status struct {
	// Incarnation changes whenever committed state may have been lost.
	Incarnation string
	// Unfit says why the store must not vote now, and what to change; "" if it may.
	Unfit string
}

// ErrTooLarge means that a transaction writes more than the store can commit at once.
var ErrTooLarge = errors.New("the transaction is larger than the store takes")

// ErrUnreadable means that a transaction found a row that cannot be read. It writes nothing.
var ErrUnreadable = errors.New("a row cannot be read")

// maxKeyBytes bounds a key.
const maxKeyBytes = 16 << 10
