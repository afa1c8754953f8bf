package optimistic

import (
	"context"
	"time"
)

// Service keeps a head and a log. Its methods may be called from any goroutine.
type Service interface {
	// Follow loads everything into the mirror and then applies every change, in the order of versions. It
	// returns when ctx ends or when it may have missed a change; then Store calls it again.
	Follow(ctx context.Context, m *Mirror) error
	// Commit writes c in one step, durably, if the head is c.Former, and returns the new version. If the head
	// is another one, Commit writes nothing and returns a *ConflictError. If c can never fit, it writes
	// nothing and returns replica.ErrTooLarge. After any other error, c may have been written.
	Commit(ctx context.Context, c *Commit) (version int64, err error)
	// Claim sets the claim to the server's name. If there is a claim already, it may wait until that one is
	// removed.
	Claim(ctx context.Context, server string) error
	// Head reads the head, at least as new as the call, and the version that wrote it. It returns "" and 0 if
	// there is none.
	Head(ctx context.Context) (head string, version int64, err error)
}

// ConflictError says that another commit was first.
type ConflictError struct {
	// Version is the version of the present head.
	Version int64
}

func (*ConflictError) Error() string { return "another server's transaction was earlier" }

// Commit is the set of writes of one transaction.
type Commit struct {
	Former string // the head that it replaces; "" if there must be none
	Head   string // the new head
	Claim  string // the claim to remove, if it still has this value; "" for none
	// The log's entries From <= n < First are removed.
	From, First int64
	// Number and Value are those of the new entry; a nil Value adds no entry.
	Number int64
	Value  []byte
}

// Snapshot is everything that a service keeps.
type Snapshot struct {
	Version     int64 // contains every change up to this version
	Head        string
	HeadVersion int64
	Claim       string
	Log         []Entry // in order
	// Origin identifies the history of the service's data. It is copied into the head when a life begins.
	Origin string
	// Lost means that the data were restored after the head's origin was recorded, so commits may be lost.
	Lost bool
	// Restored means that the data were restored at some time.
	Restored bool
}

// Entry is an entry of the log.
type Entry struct {
	Number int64
	Value  []byte
	// Age is the entry's minimum age; 0 if unknown.
	Age time.Duration
}

// Change is the set of changes of one version. It need not list the entries that a commit removes, if they are
// before its head's first. All other removals are listed. A head that adds no entry may be skipped if a later
// head follows.
type Change struct {
	Version int64
	Head    *string // nil if unchanged; "" if deleted
	Claim   *string
	Entry   *Entry // the new entry; nil if none was added
	Removed int64  // number of the last entry that was removed; 0 if none was
}
