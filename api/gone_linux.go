package api

import "golang.org/x/sys/unix"

// hungUp looks whether the peer has closed the connection, or its side of it,
// also behind bytes that nobody has read. It reads nothing and does not wait.
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
