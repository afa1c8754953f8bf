package replica

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// Store keeps a replica's rows. Its methods may be called from any goroutine.
type Store interface {
	// Update runs fn in one atomic, serialisable transaction that may write. When
	// it returns nil, what fn wrote is durable. With an error nothing of it is
	// there, unless the commit itself failed: then it may be.
	// fn may run several times, and only its last run counts: so it has no other
	// effects. In an earlier one it may find nothing where there is a row. Update
	// returns the last run's error as it is. One that writes more than 500 kB
	// or 1,000 rows may be refused with ErrTooLarge. Without a deadline in ctx the
	// store has a time limit of its own.
	Update(ctx context.Context, fn func(Tx) error) error
	// View is Update for an fn that writes nothing.
	View(ctx context.Context, fn func(Tx) error) error
	// Listen calls w for what transactions notify server of, until ctx ends. It
	// connects again by itself. A notification may get lost.
	Listen(ctx context.Context, server string, w node.Listener)
}

// Limit is for stores: ctx where it has a deadline, and otherwise one that ends after usual.
func Limit(ctx context.Context, usual time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, usual)
}

// Tx is a transaction. Keys are not empty and at most [MaxKeyBytes] long. After
// an error of the store every Get finds nothing, and Update or View returns the
// error: so the methods need not.
type Tx interface {
	// Get returns a row's value and what is left of its time to live. The value is
	// nil where there is no row or its time has passed, and only there. It must not
	// be changed, or kept after the transaction.
	Get(key string) (value []byte, left time.Duration)
	// Put writes a row that goes after ttl, counted from now; 0 keeps it for good.
	// A row never goes early while the store's clock is sound, and is not there again
	// after a transaction that wrote has found it gone.
	Put(key string, value []byte, ttl time.Duration)
	// Delete removes a row, if it is there.
	Delete(key string)
	// Range returns the first limit rows with from <= key < to, in the order of
	// their keys (bytewise).
	Range(from, to string, limit int) []Row
	// Purge removes every row.
	Purge()
	// Notify calls whoever listens for the ticket's server, once the transaction
	// is committed.
	Notify(resource string, ticket node.Ticket)
	// Now is the store's wall clock, the same for all rows of a transaction.
	Now() time.Time
	// Status names the incarnation of the rows.
	Status() Status
}

// Row is a row of a Range; what Tx.Get says of values holds for it.
type Row struct {
	Key   string
	Value []byte
	Left  time.Duration
}

// Status is what the gate is evaluated against (rule 6).
type Status struct {
	// Incarnation changes whenever committed state may have been lost.
	Incarnation string
	// Unfit says why the store must not vote now, and what to change; "" if it may.
	Unfit string
}

// ErrTooLarge is for a transaction that writes more than the store can commit at once.
var ErrTooLarge = errors.New("the transaction is larger than the store takes")

// ErrUnreadable is for a transaction that came upon a row that cannot be read. It writes nothing.
var ErrUnreadable = errors.New("a row cannot be read")

// MaxKeyBytes bounds a key.
const MaxKeyBytes = 16 << 10
