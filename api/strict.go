package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// net/http accepts headers that a proxy in front of it may read differently, which makes request smuggling
// possible (RFC 9112, section 11.2). If a Content-Length comes with a Transfer-Encoding, it drops the
// first. A line that continues the previous one (obs-fold) is joined to it. A handler sees neither, so the
// connection looks for them, and net/http then responds with 400.

// errSmuggling is the read error that makes net/http respond with 400 to such a header.
var errSmuggling = errors.New("the header is ambiguous")

// strictConn is an HTTP/1 connection that refuses ambiguous headers.
type strictConn struct {
	net.Conn            // above TLS
	paced    *pacedConn // nil over TLS, where HTTP/2 uses another type
	header   headerCheck
	refused  error // the error of every further read: net/http may read again
}

func (c *strictConn) Read(p []byte) (int, error) {
	if c.refused != nil {
		return 0, c.refused
	}
	n, err := c.Conn.Read(p)
	if c.refused = c.header.see(p[:n]); c.refused != nil {
		return 0, c.refused
	}
	if c.header.frames && c.paced != nil {
		c.paced.frames = true
	}
	return n, err
}

// NetConn returns the connection below, as tls.Conn does.
func (c *strictConn) NetConn() net.Conn { return c.Conn }

// strictTLSConn is a strictConn over TLS.
type strictTLSConn struct {
	strictConn
	state tls.ConnectionState
}

// ConnectionState lets net/http set Request.TLS.
func (c *strictTLSConn) ConnectionState() tls.ConnectionState { return c.state }

// headerCheck follows the bytes of HTTP/1 requests.
type headerCheck struct {
	line    []byte // the beginning of the present line, as far as it is needed
	last    byte   // the last byte of the present line
	lines   int    // the number of lines of this header so far
	old     bool   // the request is HTTP/1.0, which has no Transfer-Encoding
	body    int64  // bytes of the body that have not come yet
	length  int64  // the header's Content-Length; -1 if absent
	coded   bool   // the header has a Transfer-Encoding
	through bool   // the rest of the connection is not checked
	frames  bool   // because it is HTTP/2
}

// maxCheckedLine is how much of a line is kept, in bytes. A Content-Length fits.
const maxCheckedLine = 128

func (h *headerCheck) see(p []byte) error {
	for len(p) > 0 && !h.through {
		if h.body > 0 {
			n := min(h.body, int64(len(p)))
			h.body -= n
			p = p[n:]
			continue
		}
		end := bytes.IndexByte(p, '\n')
		part := p
		if end >= 0 {
			part = p[:end]
		}
		h.line = append(h.line, part[:min(len(part), maxCheckedLine-len(h.line))]...)
		if text := bytes.TrimSuffix(part, []byte("\r")); len(text) > 0 {
			h.last = text[len(text)-1]
		}
		if end < 0 {
			return nil
		}
		p = p[end+1:]
		if err := h.endLine(bytes.TrimSuffix(h.line, []byte("\r"))); err != nil {
			return err
		}
		h.line = h.line[:0]
	}
	return nil
}

// endLine checks a whole line, or the beginning of a long one.
func (h *headerCheck) endLine(line []byte) error {
	h.lines++
	switch {
	case h.lines == 1: // the request line
		h.length, h.coded, h.old = -1, false, h.last == '0'
		h.frames = string(line) == "PRI * HTTP/2.0"
		h.through = h.frames
		return nil
	case len(line) == 0:
		return h.endHeader()
	case line[0] == ' ' || line[0] == '\t':
		return errSmuggling
	}
	name, value, _ := bytes.Cut(line, []byte(":"))
	switch {
	case bytes.EqualFold(name, []byte("Transfer-Encoding")):
		h.coded = true
	case bytes.EqualFold(name, []byte("Content-Length")):
		length, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 63)
		if err != nil || h.length >= 0 && h.length != int64(length) {
			return errSmuggling
		}
		h.length = int64(length)
	}
	return nil
}

// endHeader checks the header. It need not find the end of an encoded body, because the connection is
// closed after such a body (Server.ServeHTTP).
func (h *headerCheck) endHeader() error {
	if h.coded && (h.length >= 0 || h.old) {
		return errSmuggling
	}
	h.lines, h.body, h.through = 0, max(0, h.length), h.coded
	return nil
}

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
