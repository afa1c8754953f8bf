package testenv

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Router is one address with a proxy for each of its clients: all clients have the same settings, and a fault can cut
// off one of them.
type Router struct {
	listener net.Listener
	proxies  []*Proxy
	whose    func(first []byte) (client int, known bool)
	running  sync.WaitGroup
	mu       sync.Mutex
	unknown  map[net.Conn]struct{} // connections whose client is not known yet; nil after the end
}

// StartRouter starts a router on an address, where port 0 means any port. Its proxies forward to the target. whose
// finds the client of a connection in the connection's first bytes, and is called again with more of them as long as
// it does not know the client. The router ends with the test.
func StartRouter(t testing.TB, address, target string, clients int, whose func(first []byte) (client int, known bool)) *Router {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatalf("testenv: start a router: %v", err)
	}
	r := &Router{listener: l, whose: whose, unknown: map[net.Conn]struct{}{}}
	for range clients {
		r.proxies = append(r.proxies, newProxy(target))
	}
	r.running.Go(func() { serve(l, &r.running, r.connect) })
	t.Cleanup(r.close)
	return r
}

// Addr is the address of the router.
func (r *Router) Addr() string { return r.listener.Addr().String() }

// Proxy is the proxy of a client, counted from 0.
func (r *Router) Proxy(client int) *Proxy { return r.proxies[client] }

func (r *Router) connect(conn net.Conn) {
	if !r.keep(conn) {
		return
	}
	first, client, known := r.recognise(conn)
	r.drop(conn)
	if known && client < len(r.proxies) {
		r.proxies[client].connect(conn, first)
	}
}

// recognise reads the bytes that name the client.
func (r *Router) recognise(conn net.Conn) (first []byte, client int, known bool) {
	const within, most = 10 * time.Second, 16 << 10
	_ = conn.SetReadDeadline(time.Now().Add(within))
	defer func() { _ = conn.SetReadDeadline(time.Time{}) }()
	for buf := make([]byte, most); len(first) < most; {
		n, err := conn.Read(buf[len(first):])
		first = buf[:len(first)+n]
		if client, known = r.whose(first); known || err != nil {
			return first, client, known
		}
	}
	return first, 0, false
}

// keep registers a connection. It returns false if the router has ended.
func (r *Router) keep(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unknown == nil {
		return false
	}
	r.unknown[conn] = struct{}{}
	return true
}

func (r *Router) drop(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unknown, conn)
}

// close ends the router and its proxies.
func (r *Router) close() {
	_ = r.listener.Close()
	r.mu.Lock()
	for conn := range r.unknown {
		_ = conn.Close()
	}
	r.unknown = nil
	r.mu.Unlock()
	for _, p := range r.proxies {
		p.close()
	}
	r.running.Wait()
}
