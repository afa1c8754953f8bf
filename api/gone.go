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

// errHungUp: the caller has closed its connection, although net/http has not noticed that yet.
var errHungUp = errors.New("the caller has hung up")

// socket is the TCP connection of a request, below TLS if there is TLS.
type socket struct {
	conn net.Conn
	raw  syscall.RawConn

	paced     *pacedConn             // nil if no Listener accepted it
	strangers atomic.Int32           // strangers that are being served over it
	caller    atomic.Pointer[string] // the only caller with credentials; "" if there are several
}

type socketKey struct{}

// ConnContext is for http.Server.ConnContext. With it the server notices that a caller hangs up in two
// cases in which net/http notices it too late or never:
//
//   - At the moment of a grant. net/http notices a hang-up in another goroutine, a moment later. A response
//     that is written in this moment is a lease that no client knows of, which blocks the resource for all
//     of its TTL.
//   - After a byte of the caller's next request. net/http then stops reading until the present request has
//     its response, so a waiting request would be granted a lease that no client knows of.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	paced := pacedBelow(c)
	for {
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

// socketOf returns the request's own connection, or nil if it has none: an HTTP/2 connection is shared,
// net/http always reads it, and messages end its streams.
func socketOf(r *http.Request) *socket {
	s, _ := r.Context().Value(socketKey{}).(*socket)
	if r.ProtoMajor != 1 {
		return nil
	}
	return s
}

// gone returns why the caller cannot read a response any more; nil if it can, as far as this machine knows.
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

// watchAfter is how long a request waits before its connection is watched in addition to net/http. Shorter
// waits are not worth a goroutine.
const watchAfter = 250 * time.Millisecond

// hangUpWatch notices a caller that hangs up after sending a byte of its next request.
type hangUpWatch struct {
	socket *socket
	leave  context.CancelFunc
	timer  *time.Timer
	ended  chan struct{} // closed when watch has ended

	mu      sync.Mutex
	reads   bool // it alone reads the connection: net/http has stopped
	stopped bool
}

// untilHangUp returns a context that ends with the request's context, or when its caller hangs up. Call
// stop before the response is written.
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

// watch waits for the right to read from the connection. It gets that right when net/http has read a byte, or
// when net/http stops reading because the response is written. It reads nothing: the runtime wakes it
// whenever the state of the connection changes.
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

// stop leaves the connection to net/http again.
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
		return // it ends as soon as net/http stops reading
	}
	_ = w.socket.conn.SetReadDeadline(time.Unix(1, 0)) // wakes watch; if the connection is closed, it is awake already
	<-w.ended
	_ = w.socket.conn.SetReadDeadline(time.Time{})
}
