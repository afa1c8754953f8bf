package boltstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/boltfile"
)

// The buckets, and their keys and values. Numbers are big-endian, 8 bytes.
//
//	node_file  "incarnation"  random text, made with the file
//	           "opened"       how often the file was opened
//	node_rows  a row's key    its end, and its value
//
// Every value is sealed (boltfile.Seal).
//
// An end is four numbers: TTL (ms, 0 for good), the opening of the file that wrote
// it, monotonic (ns) and Unix (ms) time.
const (
	fileBucket     = "node_file"
	rowsBucket     = "node_rows"
	incarnationKey = "incarnation"
	openedKey      = "opened"

	numberLen = 8
	endLen    = 4 * numberLen
)

// Options tune a Store. The zero value of a field takes its default.
type Options struct {
	clock clock
	sweep sweeping
}

func (o Options) withDefaults() Options {
	o.sweep.page = cmp.Or(o.sweep.page, 500)
	o.sweep.pause = cmp.Or(o.sweep.pause, 20*time.Millisecond)
	o.sweep.rest = cmp.Or(o.sweep.rest, time.Second)
	if o.clock.wall == nil {
		o.clock = systemClock()
	}
	return o
}

// File is an open bbolt file: a *bbolt.DB, or a wrapper of one.
type File interface {
	// View runs read in a read transaction and returns its error or the file's.
	View(read func(*bbolt.Tx) error) error
	// Update runs write in a transaction and returns after the sync. After an error nothing of it is in the
	// file, except when the last sync failed: then it may be.
	Update(write func(*bbolt.Tx) error) error
}

// Store is a replica.Store in a bbolt file. Close it before the file.
type Store struct {
	replica.Listeners

	db          File
	opts        Options
	incarnation string
	opening     uint64 // number of this opening of the file
	opened      moment

	closed chan struct{}
	once   sync.Once
	done   sync.WaitGroup
}

var (
	_ replica.Store   = (*Store)(nil)
	_ replica.Growing = (*Store)(nil)
)

// New prepares an open file, and starts to sweep it. It fails if the file cannot be written. It fails with
// boltfile.ErrSeal if a row is not as it was stored.
func New(db File, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	s := &Store{closed: make(chan struct{}), db: db, opts: opts, opened: opts.clock.now()}
	if err := db.Update(s.open); err != nil {
		return nil, fmt.Errorf("boltstore: prepare the file: %w", err)
	}
	s.done.Go(s.sweep)
	return s, nil
}

// open creates the buckets and entries that are missing, and counts this opening.
func (s *Store) open(tx *bbolt.Tx) error {
	if err := boltfile.Buckets(tx, fileBucket, rowsBucket); err != nil {
		return err
	}
	file := tx.Bucket([]byte(fileBucket))
	incarnation, err := get(file, incarnationKey)
	if err != nil {
		return err
	}
	s.incarnation = string(incarnation)
	if s.incarnation == "" {
		s.incarnation = rand.Text()
	}
	opened, err := get(file, openedKey)
	if err != nil {
		return err
	}
	if len(opened) == numberLen {
		s.opening = binary.BigEndian.Uint64(opened)
	}
	s.opening++
	return errors.Join(
		checkRows(tx),
		put(file, incarnationKey, []byte(s.incarnation)),
		put(file, openedKey, binary.BigEndian.AppendUint64(nil, s.opening)),
	)
}

func get(b *bbolt.Bucket, key string) ([]byte, error) {
	return boltfile.Unseal([]byte(key), b.Get([]byte(key)))
}

func put(b *bbolt.Bucket, key string, value []byte) error {
	return b.Put([]byte(key), boltfile.Seal([]byte(key), value))
}

// checkRows reads every row, so that a damaged row is found at the start.
func checkRows(tx *bbolt.Tx) error {
	return tx.Bucket([]byte(rowsBucket)).ForEach(func(key, sealed []byte) error {
		if _, err := boltfile.Unseal(key, sealed); err != nil {
			return fmt.Errorf("row %q: %w", key, err)
		}
		return nil
	})
}

// Close ends the sweeping. The file stays open.
func (s *Store) Close() error {
	s.once.Do(func() { close(s.closed) })
	s.done.Wait()
	return nil
}

// Update runs fn in one transaction. If it returns nil, fn's changes are in the file. If it returns an error,
// all of them are undone, except when the last sync failed.
func (s *Store) Update(_ context.Context, fn func(replica.Tx) error) error {
	return s.transact(s.db.Update, fn)
}

// View runs fn in a transaction that writes nothing.
func (s *Store) View(_ context.Context, fn func(replica.Tx) error) error {
	return s.transact(s.db.View, fn)
}

func (s *Store) transact(run func(func(*bbolt.Tx) error) error, fn func(replica.Tx) error) error {
	var wakes []replica.Wake
	var failed error // the error of fn itself
	err := run(func(btx *bbolt.Tx) error {
		t := s.begin(btx)
		failed = fn(t)
		wakes = t.wakes
		return errors.Join(failed, t.err)
	})
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return fmt.Errorf("the file of the embedded store: %w", err)
	}
	s.Notify(wakes)
	return nil
}

// Room implements replica.Growing. It calls the file's Room method, if there is one (boltfile.File).
func (s *Store) Room() error {
	if file, ok := s.db.(interface{ Room() error }); ok {
		return file.Room()
	}
	return nil
}

// clock reads both clocks of a machine: a monotonic one, and the wall clock, which may be set but is
// meaningful to the next process.
type clock struct {
	mono func() time.Duration // since an arbitrary moment
	wall func() time.Time
}

func systemClock() clock {
	began := time.Now()
	return clock{mono: func() time.Duration { return time.Since(began) }, wall: time.Now}
}

// moment is one reading of both clocks.
type moment struct {
	mono time.Duration
	wall time.Time
}

func (c clock) now() moment { return moment{mono: c.mono(), wall: c.wall()} }
