package api

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Listener is a net.Listener that also hands out connections that were given
// back to it, as if they were new.
type Listener struct {
	net.Listener
	next   chan accepted
	back   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

type accepted struct {
	conn net.Conn
	err  error
}

// NewListener wraps l.
func NewListener(l net.Listener) *Listener {
	w := &Listener{Listener: l, next: make(chan accepted), back: make(chan net.Conn), closed: make(chan struct{})}
	go w.accept()
	return w
}

// accept waits for new connections, while Accept waits for either kind.
func (l *Listener) accept() {
	for {
		conn, err := l.Listener.Accept()
		select {
		case l.next <- accepted{conn: conn, err: err}:
		case <-l.closed:
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// Accept returns the next connection of either kind.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.next:
		return a.conn, a.err
	case conn := <-l.back:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Give gives a connection back. It is closed if nobody accepts any more.
func (l *Listener) Give(conn net.Conn) {
	select {
	case l.back <- conn:
	case <-l.closed:
		_ = conn.Close()
	}
}

// Close ends Accept, and closes the listener below.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// returned is a connection between two requests, of which the first was parked.
type returned struct {
	net.Conn
	next []byte        // was read already
	idle time.Duration // for the next request to begin
	used atomic.Bool   // it has begun
}

func (c *returned) Read(p []byte) (int, error) {
	if len(c.next) > 0 {
		n := copy(p, c.next)
		c.next = c.next[n:]
		c.used.Store(true)
		return n, nil
	}
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.used.Store(true)
	}
	return n, err
}

// SetReadDeadline gives the caller the time of an idle connection until its next
// request begins: to net/http it is a new one, which has to send at once.
func (c *returned) SetReadDeadline(t time.Time) error {
	if !c.used.Load() && c.idle > 0 && time.Until(t) > 0 {
		t = time.Now().Add(c.idle)
	}
	return c.Conn.SetReadDeadline(t)
}

// SyscallConn is for ConnContext.
func (c *returned) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
