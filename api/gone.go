package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// errHungUp: the caller has closed its connection, although net/http has not
// noticed yet.
var errHungUp = errors.New("the caller has hung up")

// socket is the TCP connection below a request, also below TLS.
type socket struct {
	conn net.Conn
	raw  syscall.RawConn

	paced     *pacedConn   // nil where it is not a Listener's
	strangers atomic.Int32 // that are being answered over it
}

type socketKey struct{}

// ConnContext is for http.Server.ConnContext. With it a caller that hangs up is
// noticed where net/http does not notice it, or too late:
//
//   - In the moment of a grant. net/http notices by a goroutine of its own, a
//     moment later, and an answer that is written in that moment is a lease that
//     no client knows of, which blocks the resource for all of its TTL.
//   - After a byte of the caller's next request: net/http stops to read until the
//     present one is answered, and a request that waits would be granted a lease
//     that no client knows of.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	var paced *pacedConn
	for {
		if found, ok := c.(*pacedConn); ok {
			paced = found
		}
		above, ok := c.(interface{ NetConn() net.Conn }) // TLS, strictConn, pacedConn
		if !ok {
			break
		}
		c = above.NetConn()
	}
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			return context.WithValue(ctx, socketKey{}, &socket{conn: c, raw: raw, paced: paced})
		}
	}
	return ctx
}

// socketOf is nil where there is none of the request's own: an HTTP/2 connection
// is shared, is always read, and its streams are ended by messages.
func socketOf(r *http.Request) *socket {
	s, _ := r.Context().Value(socketKey{}).(*socket)
	if r.ProtoMajor != 1 {
		return nil
	}
	return s
}

// gone says why the caller cannot read an answer any more, nil if it can as
// far as this machine knows.
func gone(r *http.Request) error {
	if err := r.Context().Err(); err != nil {
		return err
	}
	s := socketOf(r)
	if s == nil {
		return nil
	}
	closed := false
	err := s.raw.Control(func(fd uintptr) { closed = hungUp(fd) })
	if closed || err != nil {
		return errHungUp
	}
	return nil
}

// watchAfter is how long a request waits before its connection is watched
// besides net/http. A shorter wait is not worth a goroutine.
const watchAfter = 250 * time.Millisecond

// hangUpWatch notices a caller that hangs up after a byte of its next request.
type hangUpWatch struct {
	socket *socket
	leave  context.CancelFunc
	timer  *time.Timer
	ended  chan struct{} // closed when watch has ended

	mu      sync.Mutex
	reads   bool // it has the connection to itself: net/http reads no more
	stopped bool
}

// untilHangUp gives a context that ends when the request's does, or when its
// caller hangs up. stop has to be called before the request is answered.
func untilHangUp(ctx context.Context, r *http.Request) (_ context.Context, stop func()) {
	s := socketOf(r)
	if s == nil {
		return ctx, func() {}
	}
	ctx, leave := context.WithCancel(ctx)
	w := &hangUpWatch{socket: s, leave: leave, ended: make(chan struct{})}
	w.timer = time.AfterFunc(watchAfter, w.watch)
	return ctx, w.stop
}

// watch waits for net/http to give up the right to read from the connection. It
// gets it when net/http has taken a byte, or reads no more because the request is
// answered. It reads nothing: the runtime wakes it whenever something happens.
func (w *hangUpWatch) watch() {
	defer close(w.ended)
	_ = w.socket.raw.Read(func(fd uintptr) (done bool) { // an error means closed, or stopped
		w.mu.Lock()
		defer w.mu.Unlock()
		w.reads = true
		if !w.stopped && hungUp(fd) {
			w.stopped = true
			w.leave()
		}
		return w.stopped
	})
}

// stop leaves the connection to net/http alone.
func (w *hangUpWatch) stop() {
	defer w.leave()
	if w.timer.Stop() {
		return // it has not begun to watch
	}
	w.mu.Lock()
	w.stopped = true
	reads := w.reads
	w.mu.Unlock()
	if !reads {
		return // it ends as soon as net/http stops to read
	}
	_ = w.socket.conn.SetReadDeadline(time.Unix(1, 0)) // wakes it; a closed connection has woken it already
	<-w.ended
	_ = w.socket.conn.SetReadDeadline(time.Time{})
}
