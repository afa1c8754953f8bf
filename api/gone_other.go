//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package api

import "syscall"

// hungUp leaves it to net/http to notice a caller that has gone.
func hungUp(syscall.RawConn) bool { return false }
