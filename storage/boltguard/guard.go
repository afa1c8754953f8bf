package boltguard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/fencing"
)

// historyKept is how many attempts are kept for each resource.
const historyKept = 100

// File is an open bbolt file: a *bbolt.DB, or a wrapper of one.
type File interface {
	// View runs read in a read transaction and returns its error or the file's.
	View(read func(*bbolt.Tx) error) error
	// Update runs write in a transaction and returns after the sync. After an error nothing of it is in the
	// file, except when the last sync failed: then it may be.
	Update(write func(*bbolt.Tx) error) error
}

// Guard is a fencing.Guard in a bbolt file.
type Guard struct {
	file    File
	commits *committer
}

var _ fencing.Guard = (*Guard)(nil)

// New creates the guard's buckets in an open file and reads all their entries. It fails if the file cannot be
// written, or if an entry is not as it was stored.
func New(file File) (*Guard, error) {
	if err := file.Update(createBuckets); err != nil {
		return nil, fmt.Errorf("prepare the guard's buckets: %w", err)
	}
	commits := &committer{file: file}
	err := file.View(func(tx *bbolt.Tx) (err error) {
		commits.usage, err = checkEntries(tx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the guarded records: %w", err)
	}
	return &Guard{file: file, commits: commits}, nil
}

// Close refuses further changes. It returns after the changes under way are in the file, and leaves the file
// open.
func (g *Guard) Close() error {
	g.commits.close()
	return nil
}

// Claim raises the mark; see fencing.Guard.
func (g *Guard) Claim(ctx context.Context, resource string, token fencing.Token) (fencing.Record, error) {
	return g.attempt(ctx, fencing.KindClaim, resource, token, nil)
}

// Write raises the mark and replaces the value; see fencing.Guard.
func (g *Guard) Write(ctx context.Context, resource string, token fencing.Token, value json.RawMessage) (fencing.Record, error) {
	if !json.Valid(value) {
		return fencing.Record{}, fencing.ErrMalformedValue
	}
	return g.attempt(ctx, fencing.KindWrite, resource, token, value)
}

// Delete removes the value; see fencing.Guard.
func (g *Guard) Delete(ctx context.Context, resource string, token fencing.Token) (fencing.Record, error) {
	return g.attempt(ctx, fencing.KindWrite, resource, token, nil)
}

func (g *Guard) attempt(ctx context.Context, kind fencing.AttemptKind, resource string, token fencing.Token, value json.RawMessage) (fencing.Record, error) {
	if err := fencing.CheckClaim(resource, token); err != nil {
		return fencing.Record{}, err
	}
	// The value outlives this call when the caller gives up during the commit, so it must be a copy that the
	// caller cannot change.
	op := &operation{ctx: ctx, kind: kind, resource: resource, token: token, value: slices.Clone(value), at: time.Now()}
	if err := g.commits.do(op); err != nil {
		return fencing.Record{}, unavailable(ctx, err)
	}
	if op.compared > token {
		return fencing.Record{}, &fencing.StaleTokenError{Resource: resource, Presented: token, Highest: op.compared}
	}
	return op.record, nil
}

// Read returns the record as it is; see fencing.Guard.
func (g *Guard) Read(ctx context.Context, resource string) (fencing.Record, error) {
	var record fencing.Record
	err := g.view(ctx, func(tx *bbolt.Tx) error {
		s, found, err := readState(tx, resource)
		if err != nil {
			return err
		}
		if !found {
			return fencing.ErrNotFound
		}
		value, err := readValue(tx, resource)
		record = s.record(resource, value)
		return err
	})
	return record, err
}

// Records returns records without their values; see fencing.Guard.
func (g *Guard) Records(ctx context.Context, prefix, after string, limit int) (records []fencing.Record, err error) {
	err = g.view(ctx, func(tx *bbolt.Tx) (err error) {
		records, err = listStates(tx, prefix, after, limit)
		return err
	})
	return records, err
}

// History returns the newest attempts first; see fencing.Guard.
func (g *Guard) History(ctx context.Context, resource string, limit int) ([]fencing.Attempt, error) {
	var attempts []fencing.Attempt
	err := g.view(ctx, func(tx *bbolt.Tx) error {
		s, found, err := readState(tx, resource)
		if err != nil {
			return err
		}
		if !found {
			return fencing.ErrNotFound
		}
		attempts, err = readHistory(tx, resource, s.attempts, limit)
		return err
	})
	return attempts, err
}

// HighestMark returns the largest mark of all; see fencing.Guard.
func (g *Guard) HighestMark(ctx context.Context) (fencing.Token, error) {
	var highest fencing.Token
	err := g.view(ctx, func(tx *bbolt.Tx) (err error) {
		highest, err = readHighest(tx)
		return err
	})
	return highest, err
}

// Usage returns running totals, so it reads nothing; see fencing.Guard.
func (g *Guard) Usage(ctx context.Context) (fencing.Usage, error) {
	g.commits.mu.Lock()
	defer g.commits.mu.Unlock()
	return g.commits.usage, ctx.Err()
}

func (g *Guard) view(ctx context.Context, read func(*bbolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := g.file.View(read)
	if err == nil || errors.Is(err, fencing.ErrNotFound) {
		return err
	}
	return unavailable(ctx, err)
}

// unavailable reports the file as unavailable, unless the caller gave up.
func unavailable(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("%w: %w", fencing.ErrGuardUnavailable, err)
}
