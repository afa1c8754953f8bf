package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/boltfile"
)

// tx is a transaction at a fixed moment.
type tx struct {
	s     *Store
	tx    *bbolt.Tx
	rows  *bbolt.Bucket
	seek  *bbolt.Cursor // a cursor over the rows; shared by all reads, since each new cursor is an allocation
	at    moment
	wakes []replica.Wake
	key   []byte // the key of the last row
	err   error  // the first error of the file, which undoes the transaction
}

// row converts a key for bbolt, which does not keep it.
func (t *tx) row(key string) []byte {
	t.key = append(t.key[:0], key...)
	return t.key
}

func (s *Store) begin(btx *bbolt.Tx) *tx {
	rows := btx.Bucket([]byte(rowsBucket))
	return &tx{s: s, tx: btx, rows: rows, seek: rows.Cursor(), at: s.opts.clock.now()}
}

func (t *tx) failed(err error) {
	if t.err == nil {
		t.err = err
	}
}

func (t *tx) Get(key string) ([]byte, time.Duration) {
	value, left, live := t.get(key)
	if !live {
		return nil, 0
	}
	return value, left
}

func (t *tx) get(key string) (value []byte, left time.Duration, live bool) {
	row := t.row(key)
	found, sealed := t.seek.Seek(row)
	if !bytes.Equal(found, row) {
		return nil, 0, false
	}
	return t.read(row, sealed)
}

// read decodes a sealed row, and reports whether its time has not passed.
func (t *tx) read(key, sealed []byte) (value []byte, left time.Duration, live bool) {
	if sealed == nil || t.err != nil {
		return nil, 0, false
	}
	raw, err := boltfile.Unseal(key, sealed)
	if err != nil || len(raw) < endLen {
		t.failed(errors.Join(replica.Unreadable(string(key)), err))
		return nil, 0, false
	}
	ttl := time.Duration(number(raw, 0)) * time.Millisecond
	if ttl == 0 {
		return raw[endLen:], 0, true
	}
	left = t.left(raw, ttl)
	return raw[endLen:], left, left > 0
}

// left returns the time until a row's end. For a row of an earlier process, this counts down from the opening
// of the file: from the time that the wall clock left then, at most the TTL.
func (t *tx) left(raw []byte, ttl time.Duration) time.Duration {
	if uint64(number(raw, 1)) == t.s.opening {
		return time.Duration(number(raw, 2)) - t.at.mono
	}
	atOpening := min(time.UnixMilli(number(raw, 3)).Sub(t.s.opened.wall), ttl)
	return atOpening - (t.at.mono - t.s.opened.mono)
}

// number reads the i-th number.
func number(raw []byte, i int) int64 { return int64(binary.BigEndian.Uint64(raw[i*numberLen:])) }

func (t *tx) Put(key string, value []byte, ttl time.Duration) {
	if t.err != nil {
		return
	}
	raw := make([]byte, 0, endLen+len(value)+boltfile.SealLen)
	for _, n := range []int64{
		wholeMillis(ttl), int64(t.s.opening), int64(t.at.mono + ttl), t.at.wall.Add(ttl).UnixMilli(),
	} {
		raw = binary.BigEndian.AppendUint64(raw, uint64(n))
	}
	row := t.row(key)
	t.failed(t.rows.Put(row, boltfile.Seal(row, append(raw, value...))))
}

// wholeMillis rounds up, so that no TTL becomes 0, which means "never ends".
func wholeMillis(ttl time.Duration) int64 {
	return int64((ttl + time.Millisecond - 1) / time.Millisecond)
}

func (t *tx) Delete(key string) {
	if t.err == nil {
		t.failed(t.rows.Delete(t.row(key)))
	}
}

func (t *tx) Range(from, to string, limit int) (rows []replica.Row) {
	for key, raw := t.seek.Seek(t.row(from)); key != nil && string(key) < to && len(rows) < limit; key, raw = t.seek.Next() {
		if value, left, live := t.read(key, raw); live {
			rows = append(rows, replica.Row{Key: string(key), Value: value, Left: left})
		}
	}
	return rows
}

func (t *tx) Purge() {
	if t.err != nil {
		return
	}
	t.failed(t.tx.DeleteBucket([]byte(rowsBucket)))
	rows, err := t.tx.CreateBucketIfNotExists([]byte(rowsBucket))
	t.failed(err)
	t.rows, t.seek = rows, rows.Cursor()
}

func (t *tx) Notify(resource string, ticket node.Ticket) {
	t.wakes = append(t.wakes, replica.Wake{Resource: resource, Ticket: ticket})
}

func (t *tx) Now() time.Time { return t.at.wall }

func (t *tx) Status() replica.Status { return replica.Status{Incarnation: t.s.incarnation} }
