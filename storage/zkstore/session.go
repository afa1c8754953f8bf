package zkstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/internal/pause"
)

// sessionTimeout is the requested session timeout; a server grants at least two of its ticks.
const sessionTimeout = 4 * time.Second

// session is this server's relation to the ensemble: a sequence of lines, one at a time.
//
//	connecting ──▶ has a server ──▶ over: another line replaces it
//	     └── no server opens a session ──▲
type session struct {
	target target
	ids    ids
	stall  time.Duration // how long a server may neither reply nor send a part of a large reply

	mu      sync.Mutex
	line    *line // the present line
	next    int   // index of the server that the next line tries first
	lastErr error // the last error of connecting
	closed  bool

	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup
}

// line is a connection to one server. After it has lost that server, it never uses another one, for two
// reasons. Another server may not have seen the state that this one showed, so a request could return an older
// state than the request before. And the client sets its watches again at another server, but misses changes
// that arrive while it does. So the next connection is another line, with its own session and watches.
type line struct {
	*session

	conn  *zk.Conn
	hosts *hosts
	ready chan struct{} // closed when the credentials are sent
	// pause is how long a line that replaces another one waits before it connects, because a server may accept
	// sessions and drop them at once, or open none; 0 for the first line.
	pause time.Duration

	// The session's mu guards the following fields.
	had    bool       // a server has opened a session
	over   bool       // that server was lost, or no server opened a session: another line replaces this one
	socket *impatient // the socket of conn
}

func openSession(ctx context.Context, t target, opts Options) (*session, error) {
	s := &session{target: t, ids: ids{target: t, latest: opts.Credentials}, stall: opts.Timeout / 2, next: rand.IntN(len(t.hosts))} //nolint:gosec // it only spreads the servers
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.renew(0); err != nil {
		return nil, err
	}
	return s, nil
}

// quiet drops the client's log lines, because the errors of requests contain the same information.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// hosts hands out the servers in turn. It resolves names at every connection.
type hosts struct {
	names []string

	mu     sync.Mutex
	next   int
	inVain int // how many attempts in a row have failed

	// allInVain is called when all servers were tried, before the client pauses for a second.
	allInVain func()
}

// Init ignores the client's shuffled list, because the order continues over all lines.
func (h *hosts) Init([]string) error { return nil }

func (h *hosts) Len() int { return len(h.names) }

func (h *hosts) Next() (name string, retryStart bool) {
	h.mu.Lock()
	name = h.names[h.next%len(h.names)]
	retryStart = h.inVain > 0 && h.inVain%len(h.names) == 0
	h.next++
	h.inVain++
	h.mu.Unlock()
	if retryStart {
		h.allInVain()
	}
	return name, retryStart
}

func (h *hosts) Connected() {}

// after returns the server that follows the last one used.
func (h *hosts) after() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.next % len(h.names)
}

// renew makes another line the present one, unless the session is closed. The line pauses before it connects.
// The caller holds mu, so that a line gets events only after it is the present one.
func (s *session) renew(pause time.Duration) error {
	if s.closed {
		return nil
	}
	l := &line{session: s, hosts: &hosts{names: s.target.hosts, next: s.next}, ready: make(chan struct{}), pause: pause}
	l.hosts.allInVain = l.giveUp
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
	first := l.ids.all()
	for _, id := range first {
		l.add(id)
	}
	if l.ids.latest != nil {
		l.done.Go(func() { l.followIDs(len(first)) })
	}
}

// add sends one user and password. ZooKeeper takes any.
func (l *line) add(id string) {
	for l.ctx.Err() == nil && l.present() == l {
		if l.conn.AddAuth("digest", []byte(id)) == nil {
			return
		}
		pause.For(l.ctx, retryPause)
	}
}

// followIDs adds what Options.Credentials returns later to a connection that stays.
func (l *line) followIDs(sent int) {
	for pause.For(l.ctx, idPause) && l.present() == l {
		for _, id := range l.ids.all()[sent:] {
			l.add(id)
			sent++
		}
	}
}

// idPause is the time between two looks at Options.Credentials.
const idPause = time.Second / 4

// ids are the users with their passwords that this process has had, oldest first.
type ids struct {
	target target
	latest func() (user, password string) // nil for those of the URL

	mu   sync.Mutex
	seen []string
}

func (i *ids) all() []string {
	user, password := i.target.user, i.target.password
	if i.latest != nil {
		user, password = i.latest()
	}
	if user == "" {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if id := user + ":" + password; !slices.Contains(i.seen, id) {
		i.seen = append(i.seen, id)
	}
	return slices.Clone(i.seen)
}

func (s *session) present() *line {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.line
}

// impatient bounds how long a server may take to open a session: the client alone would wait for half a
// minute. It also counts received bytes.
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

// sendsOn is how many bytes must arrive for a server to count as sending a large reply. Replies to pings are
// smaller.
const sendsOn = 4 << 10

// received returns how many bytes the line has received.
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

// errOver says that the line has lost its server.
var errOver = errors.New("the connection is over")

func (l *line) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	l.mu.Lock()
	over := l.had || l.over
	l.mu.Unlock()
	if over || l.pause > 0 && !pause.For(l.ctx, l.pause) {
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

// event handles the line's changes of state.
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
		_ = l.renew(retryPause) // cannot fail: the hosts were valid before
	}
}

// giveUp replaces a line for which no server opened a session, because the client would pause for a second
// before it tries them again. The client fails the requests that wait, and then ends.
func (l *line) giveUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.over = true
		_ = l.renew(vainPause) // cannot fail, as above
	}
}

// connected reports whether a server has opened the session, and if not, why.
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

// errSlow says that the connection was given up because the server did not respond in time.
var errSlow = errors.New("no response in time")

var errNoSession = errors.New("it accepts connections but opens no session: its ensemble may have no quorum")

// close ends the session. It may be called more than once.
func (s *session) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.present().conn.Close()
	s.done.Wait()
}

// call sends a request through one line, however many requests do sends. If the server does not respond in
// time, the session moves to another one. A server that is still sending counts as responsive, because a large
// reply takes long on a slow path.
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
			if now := l.received(); now-before >= sendsOn { // belongs to this reply or an earlier one
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

// leave breaks the connection because its server is slow.
func (l *line) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket != nil {
		_ = l.socket.Close()
	}
}
