package api

import (
	"net"
	"sync"
	"syscall"
)

// hangups tells when the callers of parked requests hang up. One goroutine and
// one epoll do it for all of them: a goroutine for each, that waits to read,
// took 26 of the 200 MB that ten thousand may cost.
type hangups struct {
	mu      sync.Mutex
	epoll   int // valid while anything is watched
	watched map[int32]func()
	last    int32
}

// hangupPause is how long the goroutine lives on when nothing is watched.
const hangupPause = 1000 // milliseconds

const hangup = syscall.EPOLLRDHUP | syscall.EPOLLHUP | syscall.EPOLLERR | syscall.EPOLLONESHOT

// watch calls gone, at most once, when the peer has closed the connection or
// its side of it. When stop has returned, gone has ended or will not be called.
// It reports false for what is no socket itself, as a connection over TLS.
func (h *hangups) watch(conn net.Conn, gone func()) (stop func(), ok bool) {
	raw := rawConn(conn)
	if raw == nil {
		return nil, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watched == nil && !h.start() {
		return nil, false
	}
	h.last++
	id := h.last
	if !h.control(raw, syscall.EPOLL_CTL_ADD, id) {
		return nil, false
	}
	h.watched[id] = gone
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.watched, id)
		h.control(raw, syscall.EPOLL_CTL_DEL, id)
	}, true
}

func rawConn(conn net.Conn) syscall.RawConn {
	s, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// control has h.mu. The events bear an id of our own: a closed descriptor's
// number is soon another connection's.
func (h *hangups) control(raw syscall.RawConn, how int, id int32) bool {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = syscall.EpollCtl(h.epoll, how, int(fd), &syscall.EpollEvent{Events: hangup, Fd: id})
	})
	return err == nil && failed == nil
}

// start has h.mu.
func (h *hangups) start() bool {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	h.epoll, h.watched = epoll, map[int32]func(){}
	go h.run(epoll)
	return true
}

// run ends when nothing has been watched for a while.
func (h *hangups) run(epoll int) {
	events := make([]syscall.EpollEvent, 128)
	for {
		n, err := syscall.EpollWait(epoll, events, hangupPause)
		if err != nil && err != syscall.EINTR {
			n = 0
		}
		if !h.tell(events[:max(n, 0)]) {
			return
		}
	}
}

// tell reports whether there is more to wait for.
func (h *hangups) tell(events []syscall.EpollEvent) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		if gone := h.watched[e.Fd]; gone != nil {
			delete(h.watched, e.Fd)
			gone()
		}
	}
	if len(events) > 0 || len(h.watched) > 0 {
		return true
	}
	h.watched = nil
	_ = syscall.Close(h.epoll)
	return false
}
