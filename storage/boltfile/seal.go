package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"go.etcd.io/bbolt"
)

// ErrSeal says that a value is not the value that was stored under its key.
var ErrSeal = errors.New("the checksum of an entry is wrong")

// Buckets creates the buckets in a file that has none of them. It returns ErrSeal if the file has only some of
// them, because then a name was changed.
func Buckets(tx *bbolt.Tx, names ...string) error {
	present := 0
	for _, name := range names {
		if tx.Bucket([]byte(name)) != nil {
			present++
		}
	}
	if present > 0 && present < len(names) {
		return fmt.Errorf("%w: only %d of the buckets %v are there", ErrSeal, present, names)
	}
	for _, name := range names {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return fmt.Errorf("bucket %s: %w", name, err)
		}
	}
	return nil
}

// SealLen is how many bytes Seal appends.
const SealLen = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seal appends to value a checksum over it and its key.
func Seal(key, value []byte) []byte {
	return binary.BigEndian.AppendUint32(value, sum(key, value))
}

// Unseal returns the value that was sealed under key, as a slice of sealed. It returns ErrSeal if either has
// changed, and nil for a nil entry (the key does not exist).
func Unseal(key, sealed []byte) ([]byte, error) {
	if sealed == nil {
		return nil, nil
	}
	last := len(sealed) - SealLen
	if last < 0 || binary.BigEndian.Uint32(sealed[last:]) != sum(key, sealed[:last]) {
		return nil, ErrSeal
	}
	return sealed[:last:last], nil
}

func sum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}
