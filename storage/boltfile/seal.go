package boltfile

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// ErrSeal says that a value is not the one that was stored under its key.
var ErrSeal = errors.New("the checksum of an entry is wrong")

const sealLen = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seal is value with a checksum over it and its key.
func Seal(key, value []byte) []byte {
	sealed := make([]byte, 0, len(value)+sealLen)
	sealed = append(sealed, value...)
	return binary.BigEndian.AppendUint32(sealed, sum(key, value))
}

// Unseal is the value that was sealed under key, a part of sealed; ErrSeal if
// either has changed. It gives nil for nil, which is no entry.
func Unseal(key, sealed []byte) ([]byte, error) {
	if sealed == nil {
		return nil, nil
	}
	last := len(sealed) - sealLen
	if last < 0 || binary.BigEndian.Uint32(sealed[last:]) != sum(key, sealed[:last]) {
		return nil, ErrSeal
	}
	return sealed[:last:last], nil
}

func sum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}
