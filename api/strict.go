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
	"time"
)

// net/http takes a header that a proxy before it may understand otherwise, which
// is what request smuggling needs (RFC 9112, section 11.2): a Content-Length
// beside a Transfer-Encoding, of which it drops the first, and a line that
// continues the one before (obs-fold), which it joins. A handler sees neither, so
// the connection looks for them, and net/http answers 400.

// errSmuggling is what net/http gets to see of such a header, and answers 400 to.
var errSmuggling = errors.New("the header is ambiguous")

// strictConn is an HTTP/1 connection that reads no header that may be understood in two ways.
type strictConn struct {
	net.Conn            // above TLS
	paced    *pacedConn // nil over TLS, where HTTP/2 is another connection
	header   headerCheck
	refused  error // for good: net/http may read again
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

// NetConn is the connection below, as tls.Conn has it.
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
	line    []byte // what has come of the present line, as far as it matters
	last    byte   // of the present line
	lines   int    // that this header has had
	old     bool   // it is of HTTP/1.0, which has no Transfer-Encoding
	body    int64  // bytes of the body that are still to come
	length  int64  // the header's Content-Length, -1 for none
	coded   bool   // it has a Transfer-Encoding
	through bool   // nothing more is looked at
	frames  bool   // since HTTP/2 follows
}

// maxCheckedLine is as much of a line as is kept: a Content-Length fits.
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

// endLine looks at a whole line, or at the beginning of a long one.
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

// endHeader: the end of an encoded body is not looked for, since the connection
// is closed after it (Server.ServeHTTP).
func (h *headerCheck) endHeader() error {
	if h.coded && (h.length >= 0 || h.old) {
		return errSmuggling
	}
	h.lines, h.body, h.through = 0, max(0, h.length), h.coded
	return nil
}

// Listener accepts connections that refuse headers which may be understood in two
// ways. Over TLS it shakes hands itself, in a goroutine for each connection,
// because net/http looks into HTTP/2 connections that are a *tls.Conn alone, and
// HTTP/1 ones have to be wrapped.
type Listener struct {
	net.Listener
	config   *tls.Config // nil without TLS
	limit    time.Duration
	logger   *slog.Logger
	accepted chan net.Conn
	failed   chan error
	closed   context.Context //nolint:containedctx // of the listener
	close    context.CancelFunc
	shaking  sync.WaitGroup
}

// NewListener wraps l, and has connections speak TLS if there is a config, whose
// handshake may take as long as limit; the logger gets, at debug level, those that
// fail. Close must follow.
func NewListener(l net.Listener, config *tls.Config, limit time.Duration, logger *slog.Logger) *Listener {
	w := &Listener{Listener: l, config: config, limit: limit, logger: logger, accepted: make(chan net.Conn), failed: make(chan error, 1)}
	w.closed, w.close = context.WithCancel(context.Background())
	if config != nil {
		w.shaking.Go(w.acceptTLS)
	}
	return w
}

// Accept is net.Listener.Accept.
func (l *Listener) Accept() (net.Conn, error) {
	if l.config == nil {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		paced := newPacedConn(conn)
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

func (l *Listener) acceptTLS() {
	for {
		conn, err := l.Listener.Accept()
		if err == nil {
			l.shaking.Go(func() { l.shake(tls.Server(newPacedConn(conn), l.config)) })
			continue
		}
		select {
		case l.failed <- err: // net/http decides whether to continue
		case <-l.closed.Done():
			return
		}
	}
}

// shake hands the connection on when it speaks TLS.
func (l *Listener) shake(conn *tls.Conn) {
	ctx, cancel := context.WithTimeout(l.closed, l.limit)
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

// refuse closes a connection, with an answer for a caller that speaks plain HTTP.
func (l *Listener) refuse(ctx context.Context, conn *tls.Conn, err error) {
	l.logger.LogAttrs(ctx, slog.LevelDebug, "TLS handshake failed", slog.Any("remote", conn.RemoteAddr()), slog.Any("error", err))
	if notTLS, ok := errors.AsType[tls.RecordHeaderError](err); ok && notTLS.Conn != nil {
		_ = notTLS.Conn.SetWriteDeadline(time.Now().Add(l.limit))
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
