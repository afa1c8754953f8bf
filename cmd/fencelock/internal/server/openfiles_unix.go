//go:build unix

package server

import "syscall"

// openFiles returns the maximum number of files that the process may open, 0 if it is unknown. The Go
// runtime has raised it to the system's limit.
func openFiles() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return uint64(limit.Cur) //nolint:unconvert // it is signed on FreeBSD
}
