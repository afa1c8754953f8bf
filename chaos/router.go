package chaos

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// userMark begins the password by which the router recognises the server of a connection.
const userMark = "chaos-server-"

// router is the address of a node with which all servers are configured. All servers must have the same list
// of nodes, but each needs a proxy of its own to each node, which a fault can cut. The router recognises a
// server by the password in its first bytes, and passes the connection to that server's proxy.
type router struct {
	listener net.Listener
	lines    []*testenv.Proxy // one per server
	running  sync.WaitGroup
	mu       sync.Mutex
	open     map[net.Conn]struct{} // nil once it is closed
}

func startRouter(tb testing.TB, lines []*testenv.Proxy) *router {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	r := &router{listener: l, lines: lines, open: map[net.Conn]struct{}{}}
	r.running.Go(r.serve)
	tb.Cleanup(r.close)
	return r
}

func (r *router) addr() string { return r.listener.Addr().String() }

func (r *router) serve() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.running.Go(func() { r.connect(conn) })
	}
}

func (r *router) connect(client net.Conn) {
	if !r.keep(client) {
		return
	}
	defer r.drop(client)
	first, server, err := whose(client)
	if err != nil || server >= len(r.lines) {
		return
	}
	line, err := net.DialTimeout("tcp", r.lines[server].Addr(), 5*time.Second)
	if err != nil || !r.keep(line) {
		return
	}
	defer r.drop(line)
	if _, err := line.Write(first); err != nil {
		return
	}
	var copying sync.WaitGroup
	copying.Go(func() { r.copy(line, client) })
	copying.Go(func() { r.copy(client, line) })
	copying.Wait()
}

// copy copies in one direction, and closes both connections when it ends.
func (r *router) copy(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	r.drop(to)
	r.drop(from)
}

// whose reads the first bytes up to the password, and returns the connection's server.
func whose(conn net.Conn) (first []byte, server int, err error) {
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	defer func() { _ = conn.SetReadDeadline(time.Time{}) }()
	buf := make([]byte, 4096)
	for n := 0; n < len(buf); {
		more, err := conn.Read(buf[n:])
		if err != nil {
			return nil, 0, err
		}
		n += more
		_, rest, found := bytes.Cut(buf[:n], []byte(userMark))
		if found && len(rest) > 0 {
			server, err := strconv.Atoi(string(rest[:1]))
			return buf[:n], server, err
		}
	}
	return nil, 0, errors.New("a connection that does not say whose it is")
}

// keep registers an open connection, or closes one that came too late.
func (r *router) keep(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		_ = conn.Close()
		return false
	}
	r.open[conn] = struct{}{}
	return true
}

func (r *router) drop(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, conn)
	_ = conn.Close()
}

func (r *router) close() {
	_ = r.listener.Close()
	r.mu.Lock()
	for conn := range r.open {
		_ = conn.Close()
	}
	r.open = nil
	r.mu.Unlock()
	r.running.Wait()
}
