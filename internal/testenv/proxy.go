package testenv

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Cut is how a [Proxy] treats connections.
type Cut int

// The ways to be cut off.
const (
	// CutNone lets everything through.
	CutNone Cut = iota
	// CutRefuse closes connections as soon as they are made, like a host whose service is down.
	CutRefuse
	// CutBlackhole accepts connections and bytes and delivers nothing, like a network that loses packets.
	// Bytes that were sent during the cut stay lost.
	CutBlackhole
)

// Proxy forwards connections between clients and a server. Its methods disturb them, and may be called from
// any goroutine.
type Proxy struct {
	listener net.Listener // nil if its connections come from a [Router]
	running  sync.WaitGroup

	mu      sync.Mutex
	target  string
	closed  bool
	cut     Cut
	mute    bool // replies are lost
	delay   time.Duration
	pairs   map[*pair]struct{}
	healing chan struct{} // closed, and then replaced, when a setting changes
}

// pair is one client's connection and its connection to the server.
type pair struct{ client, server net.Conn }

func (p *pair) close() {
	_ = p.client.Close()
	_ = p.server.Close()
}

// StartProxy starts a proxy to the target, a host:port. It ends with the test.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("testenv: start a proxy: %v", err)
	}
	p := newProxy(target)
	p.listener = l
	p.running.Go(func() { serve(l, &p.running, func(conn net.Conn) { p.connect(conn, nil) }) })
	t.Cleanup(p.close)
	return p
}

func newProxy(target string) *Proxy {
	return &Proxy{target: target, pairs: map[*pair]struct{}{}, healing: make(chan struct{})}
}

// serve connects the clients of a listener until it is closed.
func serve(l net.Listener, running *sync.WaitGroup, connect func(net.Conn)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		running.Go(func() {
			defer func() { _ = conn.Close() }()
			connect(conn)
		})
	}
}

// Addr is the address that clients use instead of the server's.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Delay holds back every piece of data for d from now on, in each direction; 0 ends the delay.
func (p *Proxy) Delay(d time.Duration) { p.change(func() { p.delay = d }) }

// Cut cuts the server off; CutNone ends the cut.
func (p *Proxy) Cut(how Cut) {
	p.change(func() { p.cut = how })
	if how == CutRefuse {
		p.Reset()
	}
}

// DropReplies lets requests reach the server, and drops the server's replies, while on is true.
func (p *Proxy) DropReplies(on bool) { p.change(func() { p.mute = on }) }

// Reset breaks all connections that are open now, with a TCP reset towards the client.
func (p *Proxy) Reset() {
	p.change(p.reset)
}

// heal ends a cut and resets the connections that it disturbed.
func (p *Proxy) heal() {
	p.change(func() {
		p.cut = CutNone
		p.reset()
	})
}

func (p *Proxy) reset() {
	for pr := range p.pairs {
		if tcp, ok := pr.client.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // makes closing a reset
		}
		pr.close()
	}
}

// Retarget connects new clients to another target and resets the open connections, like a virtual address
// that moves to another host.
func (p *Proxy) Retarget(target string) {
	p.change(func() { p.target = target })
	p.Reset()
}

// change changes the settings, and wakes data that is being held back.
func (p *Proxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.healing)
	p.healing = make(chan struct{})
}

// connect connects a client, whose first bytes have been read, to the server. It copies data until both directions
// have ended.
func (p *Proxy) connect(client net.Conn, first []byte) {
	target, refuses := p.where()
	if refuses {
		return
	}
	server, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		return
	}
	pr := &pair{client: client, server: server}
	defer pr.close()
	if !p.add(pr, target) {
		return
	}
	defer p.remove(pr)
	if len(first) > 0 && p.passes(false) {
		if _, err := server.Write(first); err != nil {
			return
		}
	}
	var copying sync.WaitGroup
	copying.Go(func() { p.copy(pr, server, client, false) })
	copying.Go(func() { p.copy(pr, client, server, true) })
	copying.Wait()
}

// where returns the target of a new connection, and whether the connection is refused.
func (p *Proxy) where() (target string, refuses bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target, p.cut == CutRefuse
}

// add registers a pair. It returns false if the proxy has been closed, cut or retargeted since the pair was
// connected.
func (p *Proxy) add(pr *pair, target string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.cut == CutRefuse || p.target != target {
		return false
	}
	p.pairs[pr] = struct{}{}
	return true
}

func (p *Proxy) remove(pr *pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pairs, pr)
}

// copy copies data in one direction until either side ends, and then closes both.
func (p *Proxy) copy(pr *pair, to io.Writer, from io.Reader, reply bool) {
	defer pr.close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && p.passes(reply) {
			_, werr := to.Write(buf[:n])
			err = errors.Join(err, werr)
		}
		if err != nil {
			return
		}
	}
}

// passes holds back one piece of data for the delay, and returns whether to deliver it.
func (p *Proxy) passes(reply bool) bool {
	p.mu.Lock()
	delay, healing := p.delay, p.healing
	p.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-healing:
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut == CutNone && (!reply || !p.mute)
}

func (p *Proxy) close() {
	if p.listener != nil {
		_ = p.listener.Close()
	}
	p.change(func() { p.closed = true })
	p.Reset()
	p.running.Wait()
}
