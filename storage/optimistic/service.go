package optimistic

import (
	"context"
	"time"
)

// Service keeps the keys. It may be used from any goroutine.
type Service interface {
	// Follow loads all there is into the mirror and then applies every change, in the
	// order of versions, until ctx ends or it loses track; then it is called again.
	Follow(ctx context.Context, m *Mirror) error
	// Commit writes c in one step, durably, if the head is c.Former. It returns the version
	// that this made. If it is another, Commit writes nothing and returns a *ConflictError.
	// It returns replica.ErrTooLarge for what never fits, and writes nothing. After any
	// other error it may have been written.
	Commit(ctx context.Context, c *Commit) (version int64, err error)
	// Claim sets the claim to the server's name if there is none.
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
	Former     string // the head that it continues; "" for one that there is not
	Head       string // the next
	Claim      string // is removed, if it is this; "" for none
	Generation uint64 // of the rows: those of others are no longer valid
	At         time.Time
	Put        []Put
	Delete     []string
}

// Put is a row to be written.
type Put struct {
	Key   string
	Value []byte        // as the service keeps it
	TTL   time.Duration // from Commit.At; 0 for good
}

// Snapshot is all that a service keeps.
type Snapshot struct {
	Version     int64 // it has every change up to this
	Head        string
	HeadVersion int64
	Claim       string
	Rows        []Row // of the head's generation
	// Origin is what a life of the data is recognised by; it is kept in the head.
	Origin string
	// Lost tells that the data of the head's origin were restored since, so that commits
	// may be lost.
	Lost bool
	// Restored tells that the data were restored at some time.
	Restored bool
}

// Row is a row as the service keeps it.
type Row struct {
	Generation uint64
	Key        string
	Value      []byte
	// Left bounds its time to live, where the service knows that less than all is left.
	// 0 if it does not know.
	Left time.Duration
}

// Change is what one version changed. The mirror ignores rows of other generations than
// the head's.
type Change struct {
	Version int64
	Head    *string // nil if it is as it was; "" if it was deleted
	Claim   *string
	Put     []Row
	Deleted []Row // without values
}
