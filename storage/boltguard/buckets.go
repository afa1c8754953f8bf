package boltguard

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/storage/boltfile"
)

// The buckets, and their keys and values. Numbers are big-endian, 8 bytes.
// Every value is sealed (boltfile.Seal).
//
//	guard_states   resource               mark, version, attempts ever made
//	guard_values   resource               the JSON value
//	guard_history  resource, 0, number    kind, token, compared, version, Unix nanoseconds
//	guard_meta     "highest"              the largest mark of all
//
// No resource contains a zero byte, so "resource, 0" is a prefix of the keys of
// that resource alone.
const (
	statesBucket  = "guard_states"
	valuesBucket  = "guard_values"
	historyBucket = "guard_history"
	metaBucket    = "guard_meta"
	highestKey    = "highest"

	stateLen   = 3 * 8
	attemptLen = 1 + 4*8
)

var errCorrupt = errors.New("guard bucket holds an entry of the wrong length")

func createBuckets(tx *bbolt.Tx) error {
	return boltfile.Buckets(tx, statesBucket, valuesBucket, historyBucket, metaBucket)
}

// checkEntries reads every entry, so that a damaged one is found at the start.
func checkEntries(tx *bbolt.Tx) error {
	for _, name := range []string{statesBucket, valuesBucket, historyBucket, metaBucket} {
		err := tx.Bucket([]byte(name)).ForEach(func(key, sealed []byte) error {
			if _, err := boltfile.Unseal(key, sealed); err != nil {
				return fmt.Errorf("bucket %s, entry %q: %w", name, key, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// get is an entry's value, nil if there is none. It is gone with the transaction.
func get(tx *bbolt.Tx, bucket string, key []byte) ([]byte, error) {
	value, err := boltfile.Unseal(key, tx.Bucket([]byte(bucket)).Get(key))
	if err != nil {
		return nil, fmt.Errorf("bucket %s, entry %q: %w", bucket, key, err)
	}
	return value, nil
}

func put(tx *bbolt.Tx, bucket string, key, value []byte) error {
	return tx.Bucket([]byte(bucket)).Put(key, boltfile.Seal(key, value))
}

// state is the small part of a record: a claim rewrites it without the value.
type state struct {
	mark     fencing.Token
	version  int64
	attempts uint64
}

func (s state) record(resource string, value json.RawMessage) fencing.Record {
	return fencing.Record{Resource: resource, Mark: s.mark, Value: value, Version: s.version}
}

// apply is the guard's rule: compare, then raise the mark and write, or leave
// both alone; and note the attempt either way.
func apply(tx *bbolt.Tx, op *operation) (compared fencing.Token, record fencing.Record, err error) {
	s, _, err := readState(tx, op.resource)
	if err != nil {
		return 0, record, err
	}
	compared = s.mark
	s.attempts++
	value := op.value
	if op.token >= compared {
		s.mark = op.token
		if op.kind == fencing.KindWrite {
			s.version++
			err = put(tx, valuesBucket, []byte(op.resource), op.value)
		} else {
			value, err = readValue(tx, op.resource)
		}
	}
	err = errors.Join(err, writeState(tx, op.resource, s), noteAttempt(tx, op, compared, s), raiseHighest(tx, s.mark))
	return compared, s.record(op.resource, value), err
}

func readState(tx *bbolt.Tx, resource string) (s state, found bool, err error) {
	raw, err := get(tx, statesBucket, []byte(resource))
	switch {
	case raw == nil:
		return s, false, err
	case len(raw) != stateLen:
		return s, false, errCorrupt
	}
	s.mark = fencing.Token(binary.BigEndian.Uint64(raw))
	s.version = int64(binary.BigEndian.Uint64(raw[8:]))
	s.attempts = binary.BigEndian.Uint64(raw[16:])
	return s, true, nil
}

func writeState(tx *bbolt.Tx, resource string, s state) error {
	raw := make([]byte, 0, stateLen)
	raw = binary.BigEndian.AppendUint64(raw, uint64(s.mark))
	raw = binary.BigEndian.AppendUint64(raw, uint64(s.version))
	raw = binary.BigEndian.AppendUint64(raw, s.attempts)
	return put(tx, statesBucket, []byte(resource), raw)
}

// readValue copies: what bbolt returns is gone with the transaction.
func readValue(tx *bbolt.Tx, resource string) (json.RawMessage, error) {
	value, err := get(tx, valuesBucket, []byte(resource))
	return bytes.Clone(value), err
}

func historyKey(resource string, number uint64) []byte {
	key := make([]byte, 0, len(resource)+1+8)
	key = append(key, resource...)
	key = append(key, 0)
	return binary.BigEndian.AppendUint64(key, number)
}

// noteAttempt adds a line to the history and drops the one it pushes out.
func noteAttempt(tx *bbolt.Tx, op *operation, compared fencing.Token, s state) error {
	raw := make([]byte, 0, attemptLen)
	raw = append(raw, op.kind[0])
	raw = binary.BigEndian.AppendUint64(raw, uint64(op.token))
	raw = binary.BigEndian.AppendUint64(raw, uint64(compared))
	raw = binary.BigEndian.AppendUint64(raw, uint64(s.version))
	raw = binary.BigEndian.AppendUint64(raw, uint64(op.at.UnixNano()))
	err := put(tx, historyBucket, historyKey(op.resource, s.attempts), raw)
	if s.attempts > HistoryKept {
		err = errors.Join(err, tx.Bucket([]byte(historyBucket)).Delete(historyKey(op.resource, s.attempts-HistoryKept)))
	}
	return err
}

func readHistory(tx *bbolt.Tx, resource string, newest uint64, limit int) ([]fencing.Attempt, error) {
	var attempts []fencing.Attempt
	for number := newest; number > 0 && len(attempts) < limit; number-- {
		raw, err := get(tx, historyBucket, historyKey(resource, number))
		if err != nil {
			return nil, err
		}
		if raw == nil {
			break // trimmed from here on
		}
		attempt, err := decodeAttempt(raw)
		if err != nil {
			return nil, err
		}
		attempts = append(attempts, attempt)
	}
	return attempts, nil
}

func decodeAttempt(raw []byte) (fencing.Attempt, error) {
	if len(raw) != attemptLen {
		return fencing.Attempt{}, errCorrupt
	}
	a := fencing.Attempt{
		Kind:    fencing.KindClaim,
		Token:   fencing.Token(binary.BigEndian.Uint64(raw[1:])),
		Highest: fencing.Token(binary.BigEndian.Uint64(raw[9:])),
		Version: int64(binary.BigEndian.Uint64(raw[17:])),
		At:      time.Unix(0, int64(binary.BigEndian.Uint64(raw[25:]))).UTC(),
	}
	if raw[0] == fencing.KindWrite[0] {
		a.Kind = fencing.KindWrite
	}
	a.Accepted = a.Token >= a.Highest
	return a, nil
}

func readHighest(tx *bbolt.Tx) (fencing.Token, error) {
	raw, err := get(tx, metaBucket, []byte(highestKey))
	switch {
	case raw == nil:
		return 0, err
	case len(raw) != 8:
		return 0, errCorrupt
	}
	return fencing.Token(binary.BigEndian.Uint64(raw)), nil
}

func raiseHighest(tx *bbolt.Tx, mark fencing.Token) error {
	highest, err := readHighest(tx)
	if err != nil || mark <= highest {
		return err
	}
	return put(tx, metaBucket, []byte(highestKey), binary.BigEndian.AppendUint64(nil, uint64(mark)))
}
