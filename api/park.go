package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// Parking. net/http keeps more than 20 KB for a request under way: buffers for
// the next request and for an answer that is not there yet, and the stack of a
// handler. A request that waits in line for long gives all that back: its
// connection is taken away from net/http (hijacked), a small goroutine stays in
// line, one epoll for all notices when a caller hangs up (over TLS, and where there
// is none, another small goroutine), and after the answer the connection goes back
// to net/http for its next request.

// parkAnswerTimeout is for the answer to be written.
const parkAnswerTimeout = 10 * time.Second

// wait is an acquire that may take long. It has a goroutine of its own, so that
// the handler can leave it alone.
type wait struct {
	server *Server
	req    *asked
	leave  context.CancelFunc
	queue  *waiting      // what is told of it; nil if nothing is
	done   chan struct{} // closed when the result is there

	mu     sync.Mutex
	over   bool
	parked *parked // who answers in the handler's place; nil while it is the handler
	lease  lockcore.Lease
	err    error
}

// acquireInLine acquires, and tells whether the request was parked meanwhile:
// then it is answered already, or will be.
func (s *Server) acquireInLine(w http.ResponseWriter, r *http.Request, req *asked) (lease lockcore.Lease, away bool, err error) {
	ctx, leave := context.WithCancel(req.owned(s.aside(r))) // nothing of the request's, which would be kept with it
	v := &wait{server: s, req: req, leave: leave, done: make(chan struct{})}
	go v.run(ctx) //nolint:contextcheck // see above; leave does what the request's end would
	timer := time.NewTimer(s.ParkAfter)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			if v.park(w, r) {
				return lockcore.Lease{}, true, nil
			}
			continue
		case <-r.Context().Done():
			leave()
			<-v.done
		case <-v.done:
		}
		return v.lease, false, v.err
	}
}

func (v *wait) run(ctx context.Context) {
	defer v.leave()
	v.acquire(ctx)
	v.mu.Lock()
	v.over = true
	p := v.parked
	v.mu.Unlock()
	close(v.done)
	if p != nil {
		p.finish(context.WithoutCancel(ctx))
	}
}

// acquire makes an error of a panic: there is no net/http around it that would.
func (v *wait) acquire(ctx context.Context) {
	defer func() {
		if cause := recover(); cause != nil {
			v.server.Logger.LogAttrs(ctx, slog.LevelError, "panic", slog.Any("panic", cause), slog.String("stack", string(debug.Stack())))
			v.err = errInternal
		}
		v.req.end(&v.lease, v.err)
	}()
	ctx, finish := v.server.traceAcquire(ctx, &v.req.AcquireRequest)
	began := time.Now()
	v.queue = v.server.begins(&v.req.AcquireRequest)
	v.lease, v.err = v.server.acquirer.Acquire(ctx, v.req.AcquireRequest)
	v.server.measured.acquired(v.req, &v.lease, v.err, began)
	v.server.acquired(v.queue, &v.lease, v.err)
	finish(&v.lease, v.err)
}

// park takes the connection away from net/http. It reports false where that
// cannot be (HTTP/2, a result that came meanwhile, a caller who may be locked out
// while the request waits).
func (v *wait) park(w http.ResponseWriter, r *http.Request) bool {
	rw, ok := w.(*responder)
	if !ok || rw.who != nil || r.ProtoMajor != 1 || !r.ProtoAtLeast(1, 1) {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over {
		return false
	}
	v.server.parked.Add(1) // before Shutdown forgets the connection
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		v.server.parked.Done()
		return false
	}
	rw.taken = true
	p := &parked{wait: v, conn: conn, begun: rw.begun, last: r.Close}
	p.id, p.preference = w.Header().Get(wire.HeaderRequestID), w.Header().Get(wire.HeaderPreferenceApplied)
	if n := buffered.Reader.Buffered(); n > 0 { // the next request came early
		p.next = make([]byte, n)
		_, _ = io.ReadFull(buffered, p.next) // is in memory
	}
	v.parked = p
	p.watchCaller()
	v.server.tidy()
	return true
}

// What requests leave behind when they are parked, many at a time, would lie
// about for minutes: a server whose requests only wait allocates nothing, and so
// collects nothing. It is given back to the system some time after every so many.
const (
	tidyEvery = 1000
	tidyAfter = 3 * time.Second
)

func (s *Server) tidy() {
	if s.litter.Add(1) < tidyEvery || !s.tidying.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(tidyAfter, func() {
		s.litter.Store(0)
		debug.FreeOSMemory()
		s.tidying.Store(false)
	})
}

// parked is a request that waits without net/http.
type parked struct {
	*wait
	conn       net.Conn
	id         string // X-Request-Id
	preference string // Preference-Applied
	begun      time.Time
	last       bool          // the caller wants the connection closed after the answer
	stop       func()        // ends watching, nil where watch does it
	watched    chan struct{} // closed when watch has ended, nil where there is none
	next       []byte        // what was read of the caller's next request
	hungUp     bool          // valid after stop and watched
}

// watchCaller takes the request out of the line when its caller hangs up.
func (p *parked) watchCaller() {
	gone := func() {
		p.hungUp = true
		p.leave()
	}
	var ok bool
	if p.stop, ok = p.server.hangups.watch(p.conn, gone); !ok {
		p.watched = make(chan struct{})
		go p.watch()
	}
}

// unwatch leaves the connection to the caller alone.
func (p *parked) unwatch() {
	if p.stop != nil {
		p.stop()
		return
	}
	_ = p.conn.SetReadDeadline(time.Unix(1, 0)) // a broken connection fails below, too
	<-p.watched
	_ = p.conn.SetDeadline(time.Time{})
}

// watch is watchCaller for connections that only tell when they are read.
func (p *parked) watch() {
	defer close(p.watched)
	var next [1]byte
	n, err := p.conn.Read(next[:])
	switch {
	case n > 0:
		p.next = append(p.next, next[0]) // nothing more is read: the kernel can keep it
	case !errors.Is(err, os.ErrDeadlineExceeded): // else finish wants it to end
		p.hungUp = true
		p.leave()
	}
}

// finish answers. It has the connection for itself once nobody watches it.
func (p *parked) finish(ctx context.Context) {
	defer p.server.parked.Done()
	p.unwatch()
	status := p.answer(ctx)
	p.server.record(ctx, exchange{
		id: p.id, method: http.MethodPost, route: "/locks", status: status, took: time.Since(p.begun), remote: p.conn.RemoteAddr().String(),
	})
}

// answer returns the status that was sent.
func (p *parked) answer(ctx context.Context) int {
	s, lease, err := p.server, p.lease, p.err
	var resp reply
	switch {
	case p.hungUp || socketClosed(p.conn):
		_ = p.conn.Close()
		resp.status = statusClientGone
	case err != nil:
		a := s.classify(err)
		s.logRefusal(ctx, exchange{id: p.id, method: http.MethodPost, route: "/locks", status: a.Status}, err)
		p.send(&resp, func() error { return s.writeRefusal(&resp, a) })
	default:
		p.send(&resp, func() error { return s.writeGrant(&resp, lease) })
	}
	if err == nil && resp.status == statusClientGone {
		s.giveBack(ctx, p.req, lease)
	}
	return resp.status
}

// send writes what fill puts into the answer. Where that fails, the status says
// so; else the connection goes back to where it came from.
func (p *parked) send(resp *reply, fill func() error) {
	resp.Header().Set(wire.HeaderRequestID, p.id)
	if p.preference != "" {
		resp.Header().Set(wire.HeaderPreferenceApplied, p.preference)
	}
	last := p.last || p.server.Back == nil
	_ = p.conn.SetWriteDeadline(time.Now().Add(parkAnswerTimeout))
	if fill() != nil || resp.writeTo(p.conn, last) != nil {
		resp.status = statusClientGone
		last = true
	}
	if last {
		_ = p.conn.Close()
		return
	}
	_ = p.conn.SetWriteDeadline(time.Time{})
	p.server.Back(&returned{Conn: unwrapped(p.conn), next: p.next, idle: p.server.IdleTimeout})
}

// unwrapped is the connection itself where it came back once before: else each
// long wait on it would put one wrapping around the last.
func unwrapped(c net.Conn) net.Conn {
	if back, ok := c.(*returned); ok && len(back.next) == 0 {
		return back.Conn
	}
	return c
}

// socketClosed is hungUp for a connection outside of net/http.
func socketClosed(c net.Conn) bool {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	return err == nil && hungUp(raw) // over TLS there is none: reading tells
}

// reply is an answer that net/http does not write.
type reply struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *reply) Header() http.Header {
	if a.header == nil {
		a.header = make(http.Header)
	}
	return a.header
}

func (a *reply) WriteHeader(status int) { a.status = status }

func (a *reply) Write(p []byte) (int, error) { return a.body.Write(p) }

// writeTo sends the answer as one piece.
func (a *reply) writeTo(w io.Writer, last bool) error {
	a.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
	resp := http.Response{
		StatusCode: a.status, ProtoMajor: 1, ProtoMinor: 1, Header: a.header, Close: last,
		ContentLength: int64(a.body.Len()), Body: io.NopCloser(&a.body),
	}
	var text bytes.Buffer
	if err := resp.Write(&text); err != nil {
		return err
	}
	_, err := w.Write(text.Bytes())
	return err
}

// Drain waits until every parked request has its answer, or for ctx. Call it
// after http.Server.Shutdown, which does not know of them.
func (s *Server) Drain(ctx context.Context) error {
	answered := make(chan struct{})
	go func() {
		s.parked.Wait()
		close(answered)
	}()
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
