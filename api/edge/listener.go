// Package edge is a connection before its requests mean anything: who may open one, how fast it is read, which
// headers and host names are refused, and whether its caller is still there. It knows callers by name only, and
// nothing of locks.
//
//	Listener ──▶ pacedConn ──▶ (TLS) ──▶ strictConn ──▶ net/http ──▶ handlers, which ask Of(request)
//
//	Listener     the maximum of open connections (connections), TLS handshakes
//	pacedConn    reads strangers slowly, by what their requests cost
//	strictConn   refuses headers that a proxy may read differently
//	Conn         what the requests of one connection have in common: trust, debt, hang-ups
package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"
)

// Listener accepts connections that refuse ambiguous headers, and limits how many are open. Over TLS it
// makes the handshake itself, in a goroutine for each connection: HTTP/1 connections must be wrapped, but
// net/http recognizes an HTTP/2 connection only if it is a *tls.Conn.
type Listener struct {
	net.Listener
	opts        ListenerOptions
	connections *connections
	accepted    chan net.Conn
	failed      chan error
	closed      context.Context //nolint:containedctx // ends when the listener is closed
	close       context.CancelFunc
	shaking     sync.WaitGroup
}

// ListenerOptions are the options of a Listener. All except Logger may be zero.
type ListenerOptions struct {
	TLS       *tls.Config   // nil for connections without TLS
	Handshake time.Duration // the time limit of a handshake
	// Max is the maximum number of open connections; 0 for no limit. It requires that the http.Server uses
	// this package's ConnState.
	Max    int
	Name   string       // the listener's name in the log and in metrics
	Remedy string       // what an operator can do to raise Max
	Logger *slog.Logger // gets failed handshakes, at debug level, and reached limits
}

// NewListener wraps l. Call Close at the end.
func NewListener(l net.Listener, opts ListenerOptions) *Listener {
	w := &Listener{Listener: l, opts: opts, connections: &connections{opts: opts}, accepted: make(chan net.Conn), failed: make(chan error, 1)}
	w.closed, w.close = context.WithCancel(context.Background())
	if opts.TLS != nil {
		w.shaking.Go(w.acceptTLS)
	}
	return w
}

// Accept returns the next connection, over TLS after its handshake.
func (l *Listener) Accept() (net.Conn, error) {
	if l.opts.TLS == nil {
		paced, err := l.accept()
		if err != nil {
			return nil, err
		}
		return &strictConn{Conn: paced, paced: paced}, nil
	}
	select {
	case conn := <-l.accepted:
		return conn, nil
	case err := <-l.failed:
		return nil, err
	case <-l.closed.Done():
		return nil, net.ErrClosed
	}
}

// accept returns the next connection for which there is room.
func (l *Listener) accept() (*pacedConn, error) {
	for {
		conn, err := l.Listener.Accept()
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			l.connections.makeRoom() // net/http tries again in a moment
		}
		if err != nil {
			return nil, err
		}
		paced := newPacedConn(conn)
		if l.connections.admit(paced) {
			return paced, nil
		}
		_ = conn.Close()
	}
}

func (l *Listener) acceptTLS() {
	for {
		conn, err := l.accept()
		if err == nil {
			l.shaking.Go(func() { l.shake(tls.Server(conn, l.opts.TLS)) })
			continue
		}
		select {
		case l.failed <- err: // net/http decides whether to continue
		case <-l.closed.Done():
			return
		}
	}
}

// shake passes the connection to Accept after its TLS handshake.
func (l *Listener) shake(conn *tls.Conn) {
	ctx, cancel := context.WithTimeout(l.closed, l.opts.Handshake)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		l.refuse(ctx, conn, err)
		return
	}
	var served net.Conn = conn
	if state := conn.ConnectionState(); state.NegotiatedProtocol != "h2" {
		served = &strictTLSConn{strictConn: strictConn{Conn: conn}, state: state}
	} else if paced, ok := conn.NetConn().(*pacedConn); ok {
		paced.frames = true
	}
	select {
	case l.accepted <- served:
	case <-l.closed.Done():
		_ = conn.Close()
	}
}

// refuse closes a connection. A caller that speaks plain HTTP gets a response first.
func (l *Listener) refuse(ctx context.Context, conn *tls.Conn, err error) {
	l.opts.Logger.LogAttrs(ctx, slog.LevelDebug, "TLS handshake failed", slog.Any("remote", conn.RemoteAddr()), slog.Any("error", err))
	if notTLS, ok := errors.AsType[tls.RecordHeaderError](err); ok && notTLS.Conn != nil {
		_ = notTLS.Conn.SetWriteDeadline(time.Now().Add(l.opts.Handshake))
		_, _ = io.WriteString(notTLS.Conn, "HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\nThis server speaks HTTPS.\n")
	}
	_ = conn.NetConn().Close()
}

// Close ends Accept and the handshakes, and closes the listener below.
func (l *Listener) Close() error {
	l.close()
	err := l.Listener.Close()
	l.shaking.Wait()
	return err
}
