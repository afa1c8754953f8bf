package optimistic

import (
	"context"
	"time"
)

// Service keeps a head and a log. It may be used from any goroutine.
type Service interface {
	// Follow loads all there is into the mirror and then applies every change, in the
	// order of versions, until ctx ends or it loses track; then it is called again.
	Follow(ctx context.Context, m *Mirror) error
	// Commit writes c in one step, durably, if the head is c.Former. It returns the version
	// that this made. If it is another, Commit writes nothing and returns a *ConflictError.
	// It returns replica.ErrTooLarge for what never fits, and writes nothing. After any
	// other error it may have been written.
	Commit(ctx context.Context, c *Commit) (version int64, err error)
	// Claim sets the claim to the server's name, at once or as soon as there is none.
	Claim(ctx context.Context, server string) error
	// Head reads the head, no older than the call, and the version that wrote it: "" and
	// 0 where there is none.
	Head(ctx context.Context) (head string, version int64, err error)
}

// ConflictError says that another commit was earlier.
type ConflictError struct {
	// Version is that of the head.
	Version int64
}

func (*ConflictError) Error() string { return "another server's transaction was earlier" }

// Commit is what a transaction writes.
type Commit struct {
	Former string // the head that it continues; "" for one that there is not
	Head   string // the next
	Claim  string // is removed, if it is this; "" for none
	// The log's entries from From up to First, without it, are removed.
	From, First int64
	// Number is that of the entry that is added, Value what it holds; nil for none.
	Number int64
	Value  []byte
}

// Snapshot is all that a service keeps.
type Snapshot struct {
	Version     int64 // it has every change up to this
	Head        string
	HeadVersion int64
	Claim       string
	Log         []Entry // in order
	// Origin is what a life of the data is recognised by; it is kept in the head.
	Origin string
	// Lost tells that the data of the head's origin were restored since, so that commits
	// may be lost.
	Lost bool
	// Restored tells that the data were restored at some time.
	Restored bool
}

// Entry is an entry of the log.
type Entry struct {
	Number int64
	Value  []byte
	// Age is how long ago it was written, at least; 0 where that is not known.
	Age time.Duration
}

// Change is what one version changed. Entries that a commit removes are before its head's
// first; others are missed. A head that has no entry may be left out if a later one follows.
type Change struct {
	Version int64
	Head    *string // nil if it is as it was; "" if it was deleted
	Claim   *string
	Entry   *Entry // that was added; nil for none
	Removed int64  // the last entry that was removed; 0 for none
}
