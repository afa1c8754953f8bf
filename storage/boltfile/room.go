package boltfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// roomBytes is how much Room writes: the maximum that a large transaction may add.
const roomBytes = 512 << 10

// Room returns an error if the file's disk, or its quota, is too full for a large transaction. On a full disk,
// a transaction that only replaces rows still succeeds, because it reuses free pages. So such a transaction
// does not prove that a row can be added. Room therefore writes a temporary file. It removes the file's name
// at once, so that nothing stays on the disk.
func (f *File) Room() (err error) {
	probe, err := os.CreateTemp(filepath.Dir(f.path), ".fencelock-room-*")
	if err == nil {
		if err = os.Remove(probe.Name()); err == nil {
			_, err = probe.Write(make([]byte, roomBytes))
		}
		if closed := probe.Close(); err == nil { // some network file systems report a full disk only here
			err = closed
		}
	}
	// The message omits the probe's random name, so that a disk that stays full gives the same message each
	// time.
	if number, ok := errors.AsType[syscall.Errno](err); ok && full(number) {
		return fmt.Errorf("the disk of %s has no room for %d KiB: %w", filepath.Base(f.path), roomBytes>>10, number)
	}
	return nil // other failures prove nothing about the database file, which may be the only file that this user may write
}
