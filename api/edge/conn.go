package edge

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
)

// Conn is the TCP connection of a request, below TLS if there is TLS. Its zero value is a connection of which
// nothing is known, and whose requests cost nothing.
type Conn struct {
	conn net.Conn
	raw  syscall.RawConn

	paced     *pacedConn             // nil if no Listener accepted it
	strangers atomic.Int32           // strangers that are being served over it
	caller    atomic.Pointer[string] // the only caller with credentials; "" if there are several
}

type connKey struct{}

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
			return context.WithValue(ctx, connKey{}, &Conn{conn: c, raw: raw, paced: paced})
		}
	}
	return ctx
}

// Of returns what is known of the request's connection. HTTP/2 requests share it.
func Of(r *http.Request) *Conn {
	if c, ok := r.Context().Value(connKey{}).(*Conn); ok {
		return c
	}
	return &Conn{} // without ConnContext
}

// SlowDown charges the connection for the request of a stranger.
func (c *Conn) SlowDown() { c.charge(c.paced != nil && c.paced.trusted.Load()) }

// SlowDownCaller charges the connection for a request of a caller that exceeds its share. Without access
// control all callers are "".
func (c *Conn) SlowDownCaller(caller string) { c.charge(c.isShared(caller)) }

func (c *Conn) charge(shared bool) {
	if c.paced == nil {
		return
	}
	most := maxStrangerDebt
	if shared {
		most = maxSharedDebt
	}
	c.paced.charge(strangerPause, most)
}

// isShared records a caller of the connection, and reports whether others have used it: a proxy sends
// requests of many callers.
func (c *Conn) isShared(caller string) bool {
	only := c.caller.Load()
	switch {
	case only == nil:
		first := caller // so that caller itself stays on the stack
		c.caller.CompareAndSwap(nil, &first)
		return false
	case *only == caller:
		return false
	case *only != "":
		c.caller.Store(new(string))
	}
	return true
}

// Trust says that a request with valid credentials came over the connection: its bytes are free from now on. It
// ends the debt that other callers have left on the connection of a proxy. A caller's own debt remains.
func (c *Conn) Trust(caller string) {
	if c.paced == nil {
		return
	}
	shared := c.isShared(caller)
	if known := c.paced.trusted.Swap(true); known && !shared {
		return
	}
	if c.paced.paid.Load() != 0 {
		c.paced.paid.Store(0)
	}
}
