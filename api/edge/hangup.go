package edge

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// ErrHungUp: the caller has closed its connection, although net/http has not noticed that yet.
var ErrHungUp = errors.New("the caller has hung up")

// Gone returns why the caller cannot read a response any more; nil if it can, as far as this machine knows.
func Gone(r *http.Request) error {
	if err := r.Context().Err(); err != nil {
		return err
	}
	c := Of(r)
	if !c.carriesOnly(r) {
		return nil
	}
	closed := false
	err := c.raw.Control(func(fd uintptr) { closed = hungUp(fd) })
	if closed || err != nil {
		return ErrHungUp
	}
	return nil
}

// carriesOnly reports whether the request has the connection for itself. An HTTP/2 connection is shared,
// net/http always reads it, and messages end its streams.
func (c *Conn) carriesOnly(r *http.Request) bool { return c.raw != nil && r.ProtoMajor == 1 }

// hangUpWatch notices a caller that hangs up after sending a byte of its next request.
type hangUpWatch struct {
	conn  *Conn
	leave context.CancelFunc
	timer *time.Timer
	ended chan struct{} // closed when watch has ended

	mu      sync.Mutex
	reads   bool // it alone reads the connection: net/http has stopped
	stopped bool
}

// UntilHangUp returns a context that ends with the request's context, or when its caller hangs up. The
// connection is watched in addition to net/http after a time: shorter waits are not worth a goroutine. Call stop
// before the response is written.
func UntilHangUp(ctx context.Context, r *http.Request, after time.Duration) (_ context.Context, stop func()) {
	c := Of(r)
	if !c.carriesOnly(r) {
		return ctx, func() {}
	}
	ctx, leave := context.WithCancel(ctx)
	w := &hangUpWatch{conn: c, leave: leave, ended: make(chan struct{})}
	w.timer = time.AfterFunc(after, w.watch)
	return ctx, w.stop
}

// watch waits for the right to read from the connection. It gets that right when net/http has read a byte, or
// when net/http stops reading because the response is written. It reads nothing: the runtime wakes it
// whenever the state of the connection changes.
func (w *hangUpWatch) watch() {
	defer close(w.ended)
	_ = w.conn.raw.Read(func(fd uintptr) (done bool) { // an error means closed, or stopped
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
	_ = w.conn.conn.SetReadDeadline(time.Unix(1, 0)) // wakes watch; if the connection is closed, it is awake already
	<-w.ended
	_ = w.conn.conn.SetReadDeadline(time.Time{})
}
