package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

// The service's guarded records: one JSON value for each resource. A write needs a token that is at least the
// highest token that the record has seen. A *Lease of one resource is a fencing.Lease; of a lease of several,
// pass one of its Claims.

// ReadRecord returns a record without claiming it; a holder that reads before it writes must use ClaimRecord. A
// resource that was never written has Version 0 and a nil Value.
func (c *Client) ReadRecord(ctx context.Context, resource string) (fencing.Record, error) {
	record, err := c.record(ctx, "read", resource, call{method: http.MethodGet})
	if problem, ok := asType[*ProblemError](err); ok && problem.Kind() == "record-not-found" {
		return fencing.Record{Resource: resource}, nil
	}
	return record, err
}

// ClaimRecord raises the record's high-water mark to the lease's token, and returns the record. After that no
// smaller token can write the record. Errors: ErrLeaseLost if the token is stale (a *ProblemError with the
// HighestToken), ErrUnavailable (safe to repeat), ErrDenied, ErrInvalid.
func (c *Client) ClaimRecord(ctx context.Context, lease fencing.Lease) (fencing.Record, error) {
	return c.recordUnder(ctx, "claim", lease, call{method: http.MethodPost})
}

// WriteRecord replaces the value under the lease's token; if the token is stale, nothing is written. The call
// is not repeated after a try that may have taken effect: after ErrUnavailable the value may have been written,
// or may be written later. Errors: as for ClaimRecord.
func (c *Client) WriteRecord(ctx context.Context, lease fencing.Lease, value json.RawMessage) (fencing.Record, error) {
	if !json.Valid(value) {
		return fencing.Record{}, failed("write", "", fmt.Errorf("%w: the value must be JSON", ErrInvalid))
	}
	return c.recordUnder(ctx, "write", lease, call{method: http.MethodPut, once: true, body: func(time.Duration) any { return value }})
}

// DeleteRecord removes the value under the lease's token, with the rules of WriteRecord. The highest token and
// the history remain.
func (c *Client) DeleteRecord(ctx context.Context, lease fencing.Lease) (fencing.Record, error) {
	return c.recordUnder(ctx, "delete", lease, call{method: http.MethodDelete, once: true})
}

func (c *Client) recordUnder(ctx context.Context, op string, lease fencing.Lease, call call) (fencing.Record, error) {
	claims := lease.Claims()
	if len(claims) != 1 {
		return fencing.Record{}, failed(op, "", fmt.Errorf("%w: a record belongs to one resource, and the lease to %d: pass one of its Claims", ErrInvalid, len(claims)))
	}
	call.token, call.proof = claims[0].Token, claims[0].Proof
	return c.record(ctx, op, claims[0].Resource, call)
}

func (c *Client) record(ctx context.Context, op, resource string, call call) (fencing.Record, error) {
	if err := checkResource(resource); err != nil {
		return fencing.Record{}, failed(op, resource, err)
	}
	var record wire.Record
	call.path, call.named, call.resource, call.into, call.name = recordPath+url.PathEscape(resource), resource, resource, &record, op
	if _, err := c.do(ctx, call); err != nil {
		return fencing.Record{}, failed(op, resource, err)
	}
	return fencing.Record{Resource: record.Resource, Mark: fencing.Token(record.HighestToken), Value: nonNull(record.Value), Version: record.Version}, nil
}

const recordPath = "/guarded/"

// nonNull returns nil for the JSON value null.
func nonNull(value json.RawMessage) json.RawMessage {
	if string(value) == "null" {
		return nil
	}
	return value
}

// Records returns the records whose resource begins with prefix, in the byte order of their resources and
// without their values. The iteration ends with the first error.
func (c *Client) Records(ctx context.Context, prefix string) iter.Seq2[fencing.Record, error] {
	return func(yield func(fencing.Record, error) bool) {
		query := url.Values{"prefix": {prefix}, "limit": {"1000"}}
		for {
			var page wire.RecordPage
			if _, err := c.do(ctx, call{method: http.MethodGet, path: "/guarded?" + query.Encode(), into: &page, name: "records"}); err != nil {
				yield(fencing.Record{}, failed("records", prefix, err))
				return
			}
			for _, r := range page.Records {
				if !yield(fencing.Record{Resource: r.Resource, Mark: fencing.Token(r.HighestToken), Version: r.Version}, nil) {
					return
				}
			}
			if page.NextCursor == "" {
				return
			}
			query.Set("cursor", page.NextCursor)
		}
	}
}

// History returns the newest hundred writes and claims of a record, the newest first, including refused ones.
// The iteration ends with the first error.
func (c *Client) History(ctx context.Context, resource string) iter.Seq2[fencing.Attempt, error] {
	return func(yield func(fencing.Attempt, error) bool) {
		if err := checkResource(resource); err != nil {
			yield(fencing.Attempt{}, failed("history", resource, err))
			return
		}
		query := url.Values{"resource": {resource}, "limit": {"1000"}}
		for {
			var page wire.HistoryPage
			if _, err := c.do(ctx, call{method: http.MethodGet, path: "/history?" + query.Encode(), resource: resource, into: &page, name: "history"}); err != nil {
				yield(fencing.Attempt{}, failed("history", resource, err))
				return
			}
			for _, a := range page.Attempts {
				attempt := fencing.Attempt{
					Token: fencing.Token(a.FencingToken), Highest: fencing.Token(a.HighestToken), Kind: fencing.AttemptKind(a.Kind),
					Accepted: a.Accepted, Version: a.Version, At: a.At,
				}
				if !yield(attempt, nil) {
					return
				}
			}
			if page.NextCursor == "" {
				return
			}
			query.Set("cursor", page.NextCursor)
		}
	}
}
