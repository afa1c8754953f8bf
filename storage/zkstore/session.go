package zkstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// sessionTimeout is what is asked for; a server gives at least two of its ticks.
const sessionTimeout = 4 * time.Second

// session is what this server has to do with the ensemble: one line after the other.
type session struct {
	target target
	stall  time.Duration // how long a server may not answer, and not send on

	mu      sync.Mutex
	line    *line // the present one
	next    int   // the server that the next line tries first
	lastErr error // of connecting
	closed  bool

	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup
}

// line is a connection to one server. Once it has had one, it takes no other: another server
// may not have seen yet what this one showed, so a request would be answered by an older state
// than the request before; and the client, which sets its watches again at another server,
// reads what that sends while it does, and so may miss a change. What comes after is another
// line, with a session and watches of its own.
type line struct {
	*session

	conn  *zk.Conn
	hosts *hosts
	ready chan struct{} // closed once the credentials are sent
	// follows: it replaces another line, and pauses before it connects, since a server may
	// take sessions and drop them.
	follows bool

	// with the session's mu:
	had    bool       // a server opened a session
	over   bool       // and was lost
	socket *impatient // of conn
}

func openSession(ctx context.Context, t target, stall time.Duration) (*session, error) {
	s := &session{target: t, stall: stall, next: rand.IntN(len(t.hosts))} //nolint:gosec // it only spreads the servers
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.renew(); err != nil {
		return nil, err
	}
	return s, nil
}

// quiet drops what the client logs: the errors of requests say it.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// hosts takes the servers in turn. Names are resolved whenever one is connected to.
type hosts struct {
	names []string

	mu     sync.Mutex
	next   int
	inVain int // tried in a row
}

// Init does not take the names as the client shuffles them: they are in turn over all lines.
func (h *hosts) Init([]string) error { return nil }

func (h *hosts) Len() int { return len(h.names) }

func (h *hosts) Next() (name string, retryStart bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	name = h.names[h.next%len(h.names)]
	retryStart = h.inVain > 0 && h.inVain%len(h.names) == 0
	h.next++
	h.inVain++
	return name, retryStart
}

func (h *hosts) Connected() {}

// after is the server after the one that was taken last.
func (h *hosts) after() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.next % len(h.names)
}

// renew makes another line the present one, unless the session is closed. It needs mu: a line
// hears of its states only when it is the present one.
func (s *session) renew() error {
	if s.closed {
		return nil
	}
	l := &line{session: s, hosts: &hosts{names: s.target.hosts, next: s.next}, ready: make(chan struct{}), follows: s.line != nil}
	conn, _, err := zk.Connect(s.target.hosts, sessionTimeout, zk.WithLogger(quiet{}), zk.WithLogInfo(false),
		zk.WithHostProvider(l.hosts), zk.WithDialer(l.dial), zk.WithEventCallback(l.event))
	if err != nil {
		return err
	}
	l.conn = conn
	if s.line != nil {
		s.done.Go(s.line.conn.Close)
	}
	s.line = l
	s.done.Go(l.authenticate)
	return nil
}

// authenticate sends the credentials.
func (l *line) authenticate() {
	defer close(l.ready)
	if l.target.user == "" {
		return
	}
	for l.ctx.Err() == nil && l.present() == l {
		if l.conn.AddAuth("digest", []byte(l.target.user+":"+l.target.password)) == nil {
			return
		}
		pause(l.ctx, retryPause)
	}
}

func (s *session) present() *line {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.line
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

// received is how much the line has brought.
func (l *line) received() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket == nil {
		return 0
	}
	return l.socket.got.Load()
}

func (c *impatient) SetReadDeadline(t time.Time) error {
	if !c.open {
		c.open = true
		t = time.Now().Add(c.limit)
	}
	return c.Conn.SetReadDeadline(t)
}

// errOver: the line has lost its server.
var errOver = errors.New("the connection is over")

func (l *line) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	l.mu.Lock()
	over := l.had
	l.mu.Unlock()
	if over || l.follows && !pause(l.ctx, retryPause) {
		return nil, errOver
	}
	conn, err := net.DialTimeout(network, address, min(timeout, l.stall))
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.lastErr = err
		return nil, err
	}
	l.socket = &impatient{Conn: conn, limit: l.stall}
	return l.socket, nil
}

// event hears of the line's states.
func (l *line) event(e zk.Event) {
	if e.Type != zk.EventSession {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case e.State == zk.StateHasSession:
		l.had, l.next = true, l.hosts.after()
	case e.State == zk.StateDisconnected && l.had && !l.over:
		l.over = true
		_ = l.renew() // cannot fail: the hosts were taken before
	}
}

// connected tells whether a server has the session, and if not, why.
func (s *session) connected() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.line.had && !s.line.over:
		return nil
	case s.lastErr != nil:
		return s.lastErr
	}
	return errNoSession
}

// errSlow: the connection was given up, since the server had not answered in time.
var errSlow = errors.New("no response in time")

var errNoSession = errors.New("it accepts connections but opens no session: its ensemble may have no quorum")

// close ends the session. It may be called again.
func (s *session) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.present().conn.Close()
	s.done.Wait()
}

// call sends a request by one line, however many do sends by it. A server that does not answer
// in time is left for another one: one that sends nothing, that is, since what is large takes
// long on a slow path.
func call[T any](ctx context.Context, s *session, do func(*zk.Conn) (T, error)) (T, error) {
	l := s.present()
	type answer struct {
		value T
		err   error
	}
	var none T
	got := make(chan answer, 1)
	select {
	case <-l.ready:
	case <-ctx.Done():
		return none, s.unanswered(ctx)
	}
	go func() {
		value, err := do(l.conn)
		got <- answer{value, err}
	}()
	timer := time.NewTimer(s.stall)
	defer timer.Stop()
	before := l.received()
	for slow := false; ; {
		select {
		case a := <-got:
			if a.err != nil && slow {
				a.err = fmt.Errorf("%w: %w", errSlow, a.err)
			}
			return a.value, a.err
		case <-timer.C:
			if now := l.received(); now-before >= sendsOn { // of this answer, or of one before it
				before = now
				timer.Reset(s.stall)
				continue
			}
			slow = true
			l.leave()
		case <-ctx.Done():
			return none, s.unanswered(ctx)
		}
	}
}

func (s *session) unanswered(ctx context.Context) error {
	return fmt.Errorf("no response in time: %w", cmp.Or(s.connected(), ctx.Err()))
}

// leave breaks the connection: its server is slow.
func (l *line) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket != nil {
		_ = l.socket.Close()
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
