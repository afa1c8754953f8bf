package api

import (
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/api/access"
)

// With access control, strangers are requests without valid credentials. Many may come at once without
// reading their responses, so they have their own limits: they never use the share of callers with
// credentials. A stranger beyond the limits is cut off, because a refusal would be one more response that
// is not read.
const (
	maxStrangers       = 1000                     // strangers that may be served at this server at a time
	maxStrangersOfConn = 16                       // the same for one connection, since HTTP/2 allows many; a browser needs several to load the console
	refusalTimeout     = time.Second              // how long a refusal may take to be read
	strangerPause      = 50 * time.Millisecond    // the cost of a request, by which the next read of its connection is delayed
	strangerByte       = time.Second / (64 << 10) // the cost of a byte before the first request with credentials
	strangerTolerance  = 250 * time.Millisecond   // 5 requests, or 16 KB
	maxStrangerDebt    = 10 * time.Second
	maxSharedDebt      = time.Second // the maximum debt of a connection that other callers use, too

	// An HTTP/2 frame may have only nine bytes, open no stream and still need a response, so bytes cost
	// more on such a connection. The header of a usual request is free.
	freeFrames = 4 << 10
	framesByte = time.Second / (2 << 10)
)

// strangers counts the strangers that are being served. Its zero value is ready for use.
type strangers struct{ answering atomic.Int32 }

// enter reports whether a stranger may be served; call leave after the response. A health probe is limited
// only by its connection, so that a flood cannot make an orchestrator restart the server.
func (s *strangers) enter(r *http.Request, probe bool) (leave func(), ok bool) {
	conn := connectionOf(r)
	all, own := s.answering.Add(1), conn.strangers.Add(1)
	leave = func() {
		s.answering.Add(-1)
		conn.strangers.Add(-1)
	}
	if own > maxStrangersOfConn || all > maxStrangers && !probe {
		leave()
		return nil, false
	}
	return leave, true
}

// unasked serves a request that needs no credentials.
func (s *Server) unasked(d decision, h handler) handler {
	return func(w *exchange, r *http.Request) error {
		connectionOf(r).slowDown()
		leave, ok := s.strangers.enter(r, d.probe)
		if !ok {
			panic(http.ErrAbortHandler)
		}
		defer leave()
		err := h(w, r)
		if err == nil {
			_ = http.NewResponseController(w).Flush() // the stranger counts until it has read the response
		}
		return err
	}
}

// refuseStranger writes a refusal, which must be read soon.
func (s *Server) refuseStranger(w *exchange, r *http.Request, a refusal) {
	leave, ok := s.strangers.enter(r, false)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	defer leave()
	if s.writeRefusal(w, a) == nil {
		_ = http.NewResponseController(w).Flush()
	}
}

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

// slowDown charges the connection for the request of a stranger.
func (c *socket) slowDown() { c.charge(c.paced != nil && c.paced.trusted.Load()) }

// slowDownCaller charges the connection for a request of a caller that exceeds its share.
func (c *socket) slowDownCaller(who *access.Identity) {
	caller := ""
	if who != nil {
		caller = who.Name()
	}
	c.charge(c.isShared(caller))
}

func (c *socket) charge(shared bool) {
	if c.paced == nil {
		return
	}
	most := maxStrangerDebt
	if shared {
		most = maxSharedDebt
	}
	c.paced.charge(strangerPause, most)
}

// isShared records a caller of the connection, and reports whether others have used it: a proxy sends
// requests of many callers.
func (c *socket) isShared(caller string) bool {
	only := c.caller.Load()
	switch {
	case only == nil:
		first := caller // so that caller itself stays on the stack
		c.caller.CompareAndSwap(nil, &first)
		return false
	case *only == caller:
		return false
	case *only != "":
		c.caller.Store(new(string))
	}
	return true
}

// trust ends the debt that other callers have left on the connection of a proxy. A caller's own debt
// remains.
func (c *socket) trust(caller string) {
	if c.paced == nil {
		return
	}
	shared := c.isShared(caller)
	if known := c.paced.trusted.Swap(true); known && !shared {
		return
	}
	if c.paced.paid.Load() != 0 {
		c.paced.paid.Store(0)
	}
}

// connectionOf returns what the server knows of the request's connection. HTTP/2 requests share it.
func connectionOf(r *http.Request) *socket {
	if c, ok := r.Context().Value(socketKey{}).(*socket); ok {
		return c
	}
	return &socket{} // in a test
}
