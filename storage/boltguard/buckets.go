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
//		guard_states   resource               mark, version, attempts ever made
//	   guard_values   resource               the JSON value; no entry if there is no value
//		guard_history  resource, 0, number    kind, token, compared, version, Unix nanoseconds
//		guard_meta     "highest"              the largest mark of all
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

// checkEntries reads every entry, so that a damaged entry is found at the start. It also adds up their sizes.
func checkEntries(tx *bbolt.Tx) (usage fencing.Usage, err error) {
	for _, name := range []string{statesBucket, valuesBucket, historyBucket, metaBucket} {
		err := tx.Bucket([]byte(name)).ForEach(func(key, sealed []byte) error {
			value, err := boltfile.Unseal(key, sealed)
			if err != nil {
				return fmt.Errorf("bucket %s, entry %q: %w", name, key, err)
			}
			switch name {
			case statesBucket:
				usage.Records++
			case valuesBucket:
				usage.Bytes += int64(len(value))
			}
			return nil
		})
		if err != nil {
			return usage, err
		}
	}
	return usage, nil
}

// get returns an entry's value, or nil if there is none. The value is valid until the transaction ends.
func get(tx *bbolt.Tx, bucket string, key []byte) ([]byte, error) {
	value, err := boltfile.Unseal(key, tx.Bucket([]byte(bucket)).Get(key))
	if err != nil {
		return nil, fmt.Errorf("bucket %s, entry %q: %w", bucket, key, err)
	}
	return value, nil
}

// putValue replaces a record's value (nil removes it), and returns by how many bytes the value grew.
func putValue(tx *bbolt.Tx, resource string, value json.RawMessage) (grown int64, err error) {
	before, err := get(tx, valuesBucket, []byte(resource))
	if err != nil {
		return 0, err
	}
	grown = int64(len(value)) - int64(len(before))
	if value == nil {
		return grown, tx.Bucket([]byte(valuesBucket)).Delete([]byte(resource))
	}
	return grown, put(tx, valuesBucket, []byte(resource), value)
}

func put(tx *bbolt.Tx, bucket string, key, value []byte) error {
	return tx.Bucket([]byte(bucket)).Put(key, boltfile.Seal(key, bytes.Clone(value)))
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

// apply is the guard's rule: it compares the tokens. If the new one is not stale, it raises the mark and
// writes; otherwise it changes neither. It records the attempt in both cases.
func apply(tx *bbolt.Tx, op *operation) error {
	s, found, err := readState(tx, op.resource)
	if err != nil {
		return err
	}
	op.grown = fencing.Usage{}
	if !found {
		op.grown.Records = 1
	}
	op.compared = s.mark
	s.attempts++
	value := op.value
	if op.token >= op.compared {
		s.mark = op.token
		if op.kind == fencing.KindWrite {
			s.version++
			op.grown.Bytes, err = putValue(tx, op.resource, op.value)
		} else {
			value, err = readValue(tx, op.resource)
		}
	}
	op.record = s.record(op.resource, value)
	return errors.Join(err, writeState(tx, op.resource, s), noteAttempt(tx, op, s), raiseHighest(tx, s.mark))
}

func readState(tx *bbolt.Tx, resource string) (s state, found bool, err error) {
	raw, err := get(tx, statesBucket, []byte(resource))
	if raw == nil || err != nil {
		return s, false, err
	}
	return decodeState(raw)
}

func listStates(tx *bbolt.Tx, prefix, after string, limit int) (records []fencing.Record, err error) {
	states := tx.Bucket([]byte(statesBucket)).Cursor()
	for key, sealed := states.Seek([]byte(max(prefix, after))); key != nil && len(records) < limit; key, sealed = states.Next() {
		if !bytes.HasPrefix(key, []byte(prefix)) {
			break
		}
		if string(key) == after {
			continue
		}
		raw, err := boltfile.Unseal(key, sealed)
		if err != nil {
			return nil, fmt.Errorf("bucket %s, entry %q: %w", statesBucket, key, err)
		}
		s, _, err := decodeState(raw)
		if err != nil {
			return nil, err
		}
		records = append(records, s.record(string(key), nil))
	}
	return records, nil
}

func decodeState(raw []byte) (s state, found bool, err error) {
	if len(raw) != stateLen {
		return s, false, errCorrupt
	}
	return state{mark: fencing.Token(number(raw, 0)), version: number(raw, 1), attempts: uint64(number(raw, 2))}, true, nil
}

func writeState(tx *bbolt.Tx, resource string, s state) error {
	return put(tx, statesBucket, []byte(resource), appendNumbers(nil, int64(s.mark), s.version, int64(s.attempts)))
}

func appendNumbers(raw []byte, numbers ...int64) []byte {
	for _, n := range numbers {
		raw = binary.BigEndian.AppendUint64(raw, uint64(n))
	}
	return raw
}

// number reads the i-th number.
func number(raw []byte, i int) int64 { return int64(binary.BigEndian.Uint64(raw[8*i:])) }

// readValue copies the value, because bbolt's memory is valid only until the transaction ends.
func readValue(tx *bbolt.Tx, resource string) (json.RawMessage, error) {
	value, err := get(tx, valuesBucket, []byte(resource))
	return bytes.Clone(value), err
}

func historyKey(resource string, attempt uint64) []byte {
	return appendNumbers([]byte(resource+"\x00"), int64(attempt))
}

// noteAttempt adds a line to the history, and removes the oldest one if there are too many.
func noteAttempt(tx *bbolt.Tx, op *operation, s state) error {
	raw := appendNumbers([]byte{op.kind[0]}, int64(op.token), int64(op.compared), s.version, op.at.UnixNano())
	err := put(tx, historyBucket, historyKey(op.resource, s.attempts), raw)
	if s.attempts > historyKept {
		err = errors.Join(err, tx.Bucket([]byte(historyBucket)).Delete(historyKey(op.resource, s.attempts-historyKept)))
	}
	return err
}

func readHistory(tx *bbolt.Tx, resource string, newest uint64, limit int) ([]fencing.Attempt, error) {
	var attempts []fencing.Attempt
	for n := newest; n > 0 && len(attempts) < limit; n-- {
		raw, err := get(tx, historyBucket, historyKey(resource, n))
		if err != nil {
			return nil, err
		}
		if raw == nil {
			break // the history is full from here on
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
		Token:   fencing.Token(number(raw[1:], 0)),
		Highest: fencing.Token(number(raw[1:], 1)),
		Version: number(raw[1:], 2),
		At:      time.Unix(0, number(raw[1:], 3)).UTC(),
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
	return fencing.Token(number(raw, 0)), nil
}

func raiseHighest(tx *bbolt.Tx, mark fencing.Token) error {
	highest, err := readHighest(tx)
	if err != nil || mark <= highest {
		return err
	}
	return put(tx, metaBucket, []byte(highestKey), appendNumbers(nil, int64(mark)))
}
