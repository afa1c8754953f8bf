package edge

import "golang.org/x/sys/unix"

// hungUp reports whether the peer has closed the connection, or its side of it, even if unread bytes
// precede that. It reads nothing and does not wait.
func hungUp(fd uintptr) bool {
	state := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	for {
		n, err := unix.Poll(state, 0)
		if err == unix.EINTR {
			continue
		}
		return err == nil && n > 0
	}
}
