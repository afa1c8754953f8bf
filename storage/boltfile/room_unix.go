//go:build unix

package boltfile

import (
	"errors"
	"syscall"
)

// full reports whether an error means that a disk or a quota is full.
func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
