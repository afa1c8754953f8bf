package fencing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Guard is a storage of records that refuses stale tokens. Every method is one transaction: the check of the
// token and the change happen together or not at all, and are durable when the method returns.
//
// Errors: *StaleTokenError (only the history was changed; never retry with the same token), ErrNotFound,
// ErrGuardUnavailable (the storage could not be reached or did not respond; a Write may have taken effect,
// and is safe to repeat with the same token as long as the lease is held), ctx.Err(), or
// ErrMalformedResource, ErrMalformedToken and ErrMalformedValue, after which nothing was changed.
type Guard interface {
	// Claim raises the mark of resource to token, before the holder's first read, and returns the record
	// unchanged otherwise. A resource that was never written has Version 0 and a nil Value.
	Claim(ctx context.Context, resource string, token Token) (Record, error)
	// Write raises the mark to token and replaces the value.
	Write(ctx context.Context, resource string, token Token, value json.RawMessage) (Record, error)
	// Delete writes the absence of a value: afterwards Value is nil, and Version has counted the delete. The
	// mark and the history stay, so a smaller token is still refused.
	Delete(ctx context.Context, resource string, token Token) (Record, error)
	// Read returns the record and does not raise the mark. It returns ErrNotFound if the resource was neither
	// written nor claimed.
	Read(ctx context.Context, resource string) (Record, error)
	// Records returns at most limit records, without their values, in the byte order of their resources.
	// Their resources begin with prefix and come after the resource after.
	Records(ctx context.Context, prefix, after string, limit int) ([]Record, error)
	// History returns at most limit attempts, the newest first. A guard keeps a bounded number for each
	// resource. It returns ErrNotFound in the same case as Read.
	History(ctx context.Context, resource string, limit int) ([]Attempt, error)
	// HighestMark returns the largest mark over all resources, 0 if there is none.
	HighestMark(ctx context.Context) (Token, error)
	// Usage returns how much the guard keeps now. It may read every record.
	Usage(ctx context.Context) (Usage, error)
}

// Usage is how much a guard keeps.
type Usage struct {
	Records int64 // the resources that were claimed or written, including those whose value was deleted
	Bytes   int64 // the size of the values in the storage
}

// Record is the guarded state of one resource.
type Record struct {
	Resource string
	Mark     Token           // the highest token seen; the next write needs at least this
	Value    json.RawMessage // nil until the first write, and after a delete
	Version  int64           // the number of accepted writes and deletes
}

// Attempt is one line of a resource's history: a write or a claim, accepted or refused.
type Attempt struct {
	Token    Token
	Highest  Token // the mark that the token was compared with
	Kind     AttemptKind
	Accepted bool
	Version  int64 // the version after the attempt, which a refused attempt does not change
	At       time.Time
}

// AttemptKind distinguishes writes from claims.
type AttemptKind string

// The kinds of attempt.
const (
	KindWrite AttemptKind = "write"
	KindClaim AttemptKind = "claim"
)

var (
	// ErrNotFound says that the guard has no record of the resource.
	ErrNotFound = errors.New("resource not found in the guard")
	// ErrGuardUnavailable says that the guard's storage could not be reached.
	ErrGuardUnavailable = errors.New("guard storage unavailable")
	// ErrMalformedValue says that a value is not JSON.
	ErrMalformedValue = errors.New("malformed value: not JSON")
	// ErrStaleToken is what every *StaleTokenError matches with errors.Is.
	ErrStaleToken = errors.New("stale fencing token")
)

// StaleTokenError refuses a token below the highest one seen. Another lease holds, or has held, the resource
// since then. The holder must stop, and acquire the lock again.
type StaleTokenError struct {
	Resource  string
	Presented Token
	Highest   Token
}

func (e *StaleTokenError) Error() string {
	return fmt.Sprintf("stale fencing token for %q: presented %d, highest seen %d; acquire the lock again", e.Resource, e.Presented, e.Highest)
}

// Is makes errors.Is(err, ErrStaleToken) and errors.Is(err, ErrLeaseLost) true.
func (e *StaleTokenError) Is(target error) bool {
	return target == ErrStaleToken || target == ErrLeaseLost
}
