package edge

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
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
// closed after such a body (api.Server.ServeHTTP).
func (h *headerCheck) endHeader() error {
	if h.coded && (h.length >= 0 || h.old) {
		return errSmuggling
	}
	h.lines, h.body, h.through = 0, max(0, h.length), h.coded
	return nil
}
