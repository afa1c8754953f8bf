//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package api

import "syscall"

// hungUp looks whether the peer has closed the connection. It reads nothing
// and does not wait, not even for the goroutine that waits to read.
func hungUp(conn syscall.RawConn) (closed bool) {
	err := conn.Control(func(fd uintptr) {
		var next [1]byte
		for {
			n, _, err := syscall.Recvfrom(int(fd), next[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
			switch err {
			case syscall.EINTR:
				continue
			case nil:
				closed = n == 0
			case syscall.EAGAIN:
			default:
				closed = true // reset, mostly
			}
			return
		}
	})
	return closed || err != nil
}
