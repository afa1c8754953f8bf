package edge

import (
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// pacedConn is a connection that is read slowly while strangers use it, so that a few connections cannot
// take all of the processor's time. Each request and byte of strangers adds to a debt of time. If the debt exceeds a
// tolerance, the next read is delayed until the debt is paid.
type pacedConn struct {
	net.Conn
	raw     syscall.RawConn // nil for none
	trusted atomic.Bool     // a request with credentials has come: bytes are free now
	frames  bool            // it speaks HTTP/2. frames and read belong to the goroutine that reads
	read    int             // bytes of HTTP/2 before the first request with credentials
	paid    atomic.Int64    // the time at which everything that came is paid for, in Unix nanoseconds
	closed  atomic.Bool

	listener *connections // the connections that count it; nil for none. Their mutex guards place and left
	place    connPlace    // zero while a request of a caller is served
	left     bool         // it is closed, and not counted any more
}

// sendBuffer bounds the data that waits in the kernel for a caller that does not read. Without it, the
// system buffers megabytes on each connection. Linux doubles the value.
const sendBuffer = 64 << 10

func newPacedConn(conn net.Conn) *pacedConn {
	c := &pacedConn{Conn: conn}
	if tcp, ok := conn.(*net.TCPConn); ok { // an error means that it is closed, which its reader notices
		_ = tcp.SetWriteBuffer(sendBuffer)
		c.raw, _ = tcp.SyscallConn()
	}
	return c
}

func (c *pacedConn) Read(p []byte) (int, error) {
	left := c.owes()
	for ; left > 0 && !c.closed.Load() && !c.abandoned(); left = c.owes() {
		time.Sleep(min(left, strangerPause))
	}
	if c.closed.Load() || left > 0 || c.frames && c.abandoned() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(p)
	if !c.trusted.Load() {
		c.charge(c.priceOf(n), maxStrangerDebt)
	}
	return n, err
}

// abandoned reports whether a stranger has closed the connection after what it sent. The rest of it then
// need not be served.
func (c *pacedConn) abandoned() (gone bool) {
	if c.raw == nil || c.trusted.Load() {
		return false
	}
	_ = c.raw.Control(func(fd uintptr) { gone = hungUp(fd) })
	return gone
}

// priceOf returns the price of n more bytes of a stranger.
func (c *pacedConn) priceOf(n int) time.Duration {
	if !c.frames {
		return time.Duration(n) * strangerByte
	}
	c.read += n
	return time.Duration(min(n, max(0, c.read-freeFrames))) * framesByte
}

// owes returns how long the next read must wait.
func (c *pacedConn) owes() time.Duration {
	paid := c.paid.Load()
	if paid == 0 {
		return 0
	}
	return time.Until(time.Unix(0, paid)) - strangerTolerance
}

// charge adds a cost, up to a debt of most.
func (c *pacedConn) charge(cost, most time.Duration) {
	now := time.Now().UnixNano()
	c.paid.Store(min(max(c.paid.Load(), now)+int64(cost), now+int64(most)))
}

// NetConn returns the connection below, as tls.Conn does.
func (c *pacedConn) NetConn() net.Conn { return c.Conn }

// Close also ends a read that waits. If a stranger owes time, its socket stays open for a moment, so that
// the stranger does not continue at once with another connection.
func (c *pacedConn) Close() error {
	owes := c.owes()
	if c.closed.Swap(true) || c.trusted.Load() || owes <= 0 {
		return c.end()
	}
	time.AfterFunc(min(owes, maxSharedDebt), func() { _ = c.end() })
	return nil
}

// end closes the socket at once.
func (c *pacedConn) end() error {
	c.closed.Store(true)
	err := c.Conn.Close()
	c.listener.leave(c)
	return err
}
