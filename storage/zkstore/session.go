package zkstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	// sessionTimeout is what is asked for; a server gives at least two of its ticks.
	sessionTimeout = 4 * time.Second
	// renewAfter is when a connection that finds no server is given up for a new one. A
	// server refuses one that has seen more than it has itself, which after a restore from
	// a backup is so for all.
	renewAfter = 6 * time.Second
)

// session is a connection to the ensemble. It breaks and is made again by itself.
type session struct {
	target target
	stall  time.Duration // how long a server may not answer, and not send on

	mu      sync.Mutex
	conn    *zk.Conn      // the present one; its credentials may not be sent yet
	ready   chan struct{} // closed once they are
	socket  *impatient    // of conn
	begun   bool          // a server took it once
	since   time.Time     // when the last server was lost; zero while there is one
	lastErr error         // of connecting

	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup
}

func openSession(ctx context.Context, t target, stall time.Duration) (*session, error) {
	s := &session{target: t, stall: stall}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.renew(); err != nil {
		return nil, err
	}
	s.done.Go(s.watch)
	return s, nil
}

// quiet drops what the client logs: the errors of requests say it.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// hosts takes the servers in turn. Names are resolved whenever one is connected to.
type hosts struct {
	mu        sync.Mutex
	names     []string
	next, bad int // bad: tried in a row
}

func (h *hosts) Init(names []string) error {
	h.names = names
	return nil
}

func (h *hosts) Len() int { return len(h.names) }

func (h *hosts) Next() (name string, retryStart bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	name = h.names[h.next%len(h.names)]
	retryStart = h.bad > 0 && h.bad%len(h.names) == 0
	h.next++
	h.bad++
	return name, retryStart
}

func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bad = 0
}

// renew makes a new connection, and a new session with it.
func (s *session) renew() error {
	conn, _, err := zk.Connect(s.target.hosts, sessionTimeout, zk.WithLogger(quiet{}), zk.WithLogInfo(false),
		zk.WithHostProvider(&hosts{}), zk.WithDialer(s.dial), zk.WithEventCallback(s.event))
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	s.mu.Lock()
	old := s.conn
	s.conn, s.ready, s.since = conn, ready, time.Now()
	s.mu.Unlock()
	if old != nil {
		s.done.Go(old.Close)
	}
	s.done.Go(func() { s.authenticate(conn, ready) })
	return nil
}

// authenticate sends the credentials, which the connection then repeats by itself.
func (s *session) authenticate(conn *zk.Conn, ready chan struct{}) {
	defer close(ready)
	if s.target.user == "" {
		return
	}
	for s.ctx.Err() == nil && s.present() == conn {
		if conn.AddAuth("digest", []byte(s.target.user+":"+s.target.password)) == nil {
			return
		}
		pause(s.ctx, retryPause)
	}
}

func (s *session) present() *zk.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

// impatient bounds how long a server may take to open a session, where the client would
// wait for half a minute. It counts what comes.
type impatient struct {
	net.Conn
	limit time.Duration
	open  bool
	got   atomic.Int64 // bytes
}

func (c *impatient) Read(to []byte) (n int, err error) {
	n, err = c.Conn.Read(to)
	c.got.Add(int64(n))
	return n, err
}

// sendsOn is how many bytes come at least while a server sends something large: replies to
// pings are smaller.
const sendsOn = 4 << 10

// received is how much the present connection has brought.
func (s *session) received() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.socket == nil {
		return 0
	}
	return s.socket.got.Load()
}

func (c *impatient) SetReadDeadline(t time.Time) error {
	if !c.open {
		c.open = true
		t = time.Now().Add(c.limit)
	}
	return c.Conn.SetReadDeadline(t)
}

func (s *session) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, min(timeout, s.stall))
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.lastErr = err
		return nil, err
	}
	s.socket = &impatient{Conn: conn, limit: s.stall}
	return s.socket, nil
}

// event hears of the session's states.
func (s *session) event(e zk.Event) {
	if e.Type != zk.EventSession {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.State {
	case zk.StateHasSession:
		s.begun, s.since = true, time.Time{}
	case zk.StateDisconnected, zk.StateExpired:
		if s.since.IsZero() {
			s.since = time.Now()
		}
	}
}

// watch renews a connection that finds no server for too long.
func (s *session) watch() {
	for pause(s.ctx, time.Second) {
		s.mu.Lock()
		stale := !s.since.IsZero() && time.Since(s.since) > renewAfter
		s.mu.Unlock()
		if stale {
			_ = s.renew() // cannot fail: the hosts were taken before
		}
	}
}

// connected tells whether a server has the session, and if not, why.
func (s *session) connected() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() && s.begun {
		return nil
	}
	if s.lastErr != nil {
		return s.lastErr
	}
	return errNoSession
}

// errSlow: the connection was given up, since the server had not answered in time.
var errSlow = errors.New("no response in time")

var errNoSession = errors.New("it accepts connections but opens no session: its ensemble may have no quorum")

func (s *session) close() {
	s.stop()
	s.present().Close()
	s.done.Wait()
}

// call sends a request. A server that does not answer in time is left for another one: one
// that sends nothing, that is, since what is large takes long on a slow path.
func call[T any](ctx context.Context, s *session, do func(*zk.Conn) (T, error)) (T, error) {
	s.mu.Lock()
	conn, ready := s.conn, s.ready
	s.mu.Unlock()
	type answer struct {
		value T
		err   error
	}
	var none T
	got := make(chan answer, 1)
	select {
	case <-ready:
	case <-ctx.Done():
		return none, s.unanswered(ctx)
	}
	go func() {
		value, err := do(conn)
		got <- answer{value, err}
	}()
	timer := time.NewTimer(s.stall)
	defer timer.Stop()
	before := s.received()
	for slow := false; ; {
		select {
		case a := <-got:
			if a.err != nil && slow {
				a.err = fmt.Errorf("%w: %w", errSlow, a.err)
			}
			return a.value, a.err
		case <-timer.C:
			if now := s.received(); now-before >= sendsOn { // of this answer, or of one before it
				before = now
				timer.Reset(s.stall)
				continue
			}
			slow = true
			s.leave(conn)
		case <-ctx.Done():
			return none, s.unanswered(ctx)
		}
	}
}

func (s *session) unanswered(ctx context.Context) error {
	return fmt.Errorf("no response in time: %w", cmp.Or(s.connected(), ctx.Err()))
}

// leave breaks the connection, so that the client turns to the next server.
func (s *session) leave(conn *zk.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == conn && s.socket != nil {
		_ = s.socket.Close()
	}
}

// pause waits; it returns false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
