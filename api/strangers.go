package api

import (
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"
)

// Where there is access control, strangers are requests without valid credentials. Many may
// come at once and read no answer, so they are bounded by themselves: what they take is
// nobody's who has credentials. One beyond the bounds is cut off, since a refusal would be
// one more answer that nobody reads.
const (
	maxStrangers       = 1000                     // that are being answered at this server
	maxStrangersOfConn = 16                       // over one connection, which HTTP/2 allows; a browser loads the console so
	refusalTimeout     = time.Second              // for a stranger to take a refusal
	strangerPause      = 50 * time.Millisecond    // what a request costs its connection
	strangerByte       = time.Second / (64 << 10) // what a byte does, before a request with credentials
	strangerTolerance  = 250 * time.Millisecond   // 5 requests, or 16 KB
	maxStrangerDebt    = 10 * time.Second
	maxSharedDebt      = time.Second // of a connection that others use, too

	// A frame of HTTP/2 may have nine bytes, open no stream and still need an answer, so
	// that bytes are dearer there; a usual header is free.
	freeFrames = 4 << 10
	framesByte = time.Second / (2 << 10)
)

// strangers counts those that are being answered. Its zero value is ready.
type strangers struct{ answering atomic.Int32 }

// enter reports whether a stranger may be answered; leave must follow then, once it has its
// answer. A probe of the server's health is bounded by its connection alone: a flood must
// not have the server restarted.
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

// unasked answers a request that needs no credentials.
func (s *Server) unasked(d decision, h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		connectionOf(r).slowDown()
		leave, ok := s.strangers.enter(r, d.probe)
		if !ok {
			panic(http.ErrAbortHandler)
		}
		defer leave()
		err := h(w, r)
		if err == nil {
			_ = http.NewResponseController(w).Flush() // it counts until it is taken
		}
		return err
	}
}

// refuseStranger writes a refusal, which has to be taken soon.
func (s *Server) refuseStranger(w *responder, r *http.Request, a refusal) {
	leave, ok := s.strangers.enter(r, false)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	defer leave()
	w.within = refusalTimeout
	if s.writeRefusal(w, a) == nil {
		_ = http.NewResponseController(w).Flush()
	}
}

// pacedConn is a connection that is read slowly while strangers use it: a few connections
// must not take all of the processor's time. What they send costs it time, and beyond a
// tolerance that time has to pass before the next read.
type pacedConn struct {
	net.Conn
	raw     syscall.RawConn // nil for none
	trusted atomic.Bool     // a request with credentials has come: bytes cost nothing
	frames  bool            // it speaks HTTP/2; with read, of the goroutine that reads
	read    int             // bytes of HTTP/2 before a request with credentials
	paid    atomic.Int64    // until when what came is paid for, since 1970 in nanoseconds
	closed  atomic.Bool
}

// sendBuffer bounds what waits in the kernel for a caller that does not read: without it the
// system lets megabytes wait on each connection. It is twice as much on Linux.
const sendBuffer = 64 << 10

func newPacedConn(conn net.Conn) *pacedConn {
	c := &pacedConn{Conn: conn}
	if tcp, ok := conn.(*net.TCPConn); ok { // an error: it is closed already, as its reader finds out
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

// abandoned reports whether a stranger has closed the connection behind what it sent: the
// rest is for nobody.
func (c *pacedConn) abandoned() (gone bool) {
	if c.raw == nil || c.trusted.Load() {
		return false
	}
	_ = c.raw.Control(func(fd uintptr) { gone = hungUp(fd) })
	return gone
}

// priceOf is what n more bytes of a stranger cost.
func (c *pacedConn) priceOf(n int) time.Duration {
	if !c.frames {
		return time.Duration(n) * strangerByte
	}
	c.read += n
	return time.Duration(min(n, max(0, c.read-freeFrames))) * framesByte
}

// owes is how long the next read has to wait.
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

// NetConn is the connection below, as tls.Conn has it.
func (c *pacedConn) NetConn() net.Conn { return c.Conn }

// Close also ends a read that waits. The socket of a stranger that owes time stays for a
// moment, so that it does not begin again at once with another one.
func (c *pacedConn) Close() error {
	owes := c.owes()
	if c.closed.Swap(true) || c.trusted.Load() || owes <= 0 {
		return c.Conn.Close()
	}
	time.AfterFunc(min(owes, maxSharedDebt), func() { _ = c.Conn.Close() })
	return nil
}

// slowDown charges the connection for the request of a stranger.
func (c *socket) slowDown() {
	if c.paced == nil {
		return
	}
	most := maxStrangerDebt
	if c.paced.trusted.Load() {
		most = maxSharedDebt
	}
	c.paced.charge(strangerPause, most)
}

// trust ends the debt: a proxy sends requests of many callers over a connection.
func (c *socket) trust() {
	if c.paced == nil {
		return
	}
	if !c.paced.trusted.Load() {
		c.paced.trusted.Store(true)
	}
	if c.paced.paid.Load() != 0 {
		c.paced.paid.Store(0)
	}
}

// connectionOf is what is known of the request's connection, which HTTP/2 requests share.
func connectionOf(r *http.Request) *socket {
	if c, ok := r.Context().Value(socketKey{}).(*socket); ok {
		return c
	}
	return &socket{} // a test's
}
