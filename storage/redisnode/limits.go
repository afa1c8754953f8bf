package redisnode

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// What one reply may hold. The largest that a sound node sends is a page of
// locks with all their metadata, a few megabytes. The library makes room for
// whatever length a reply announces, before it has come: a broken node could
// end the whole service with one line.
const (
	mostReplyBytes    = 64 << 20
	mostReplyElements = 1 << 20
	mostReplyDepth    = 8
	mostReplyLine     = 64 << 10
)

var errReplyLimit = errors.New("the node's reply is malformed or larger than any that this service asks for")

// limitedDialer connects as the library would, and looks at what comes back
// before the library does.
func limitedDialer(r *redis.Options) func(context.Context, string, string) (net.Conn, error) {
	plain := &net.Dialer{Timeout: r.DialTimeout}
	dial := plain.DialContext
	if r.TLSConfig != nil {
		dial = (&tls.Dialer{NetDialer: plain, Config: r.TLSConfig}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return limited(conn), nil
	}
}

// limited wraps a connection. The library asks a socket whether it is still
// there before it uses it again, so what has that method keeps it.
func limited(conn net.Conn) net.Conn {
	l := &limitedConn{Conn: conn}
	if socket, ok := conn.(syscall.Conn); ok {
		return &limitedSocket{limitedConn: l, Conn: socket}
	}
	return l
}

type limitedSocket struct {
	*limitedConn
	syscall.Conn
}

// limitedConn ends the connection when a reply breaks the limits.
type limitedConn struct {
	net.Conn
	replies replyScanner
	broken  bool
}

// Read reads what keeps to the limits.
func (c *limitedConn) Read(p []byte) (int, error) {
	if c.broken {
		return 0, errReplyLimit
	}
	n, err := c.Conn.Read(p)
	if !c.replies.scan(p[:n]) {
		c.broken = true
		_ = c.Close() // nothing that follows can be told apart
		return 0, errReplyLimit
	}
	return n, err
}

// replyScanner follows a stream of RESP2 replies as far as their lengths.
type replyScanner struct {
	line     []byte // the beginning of a line, until its end comes
	skip     int    // how much of a string is to come, its line end included
	open     []int  // of each array around: how many elements are to come
	bytes    int    // of the reply under way
	elements int
}

// scan takes what came next and reports whether it is within the limits.
func (s *replyScanner) scan(p []byte) bool {
	for len(p) > 0 {
		if s.skip > 0 {
			n := min(len(p), s.skip)
			p = p[n:]
			if s.skip -= n; s.skip == 0 {
				s.ended()
			}
			continue
		}
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			s.line = append(s.line, p...)
			return len(s.line) <= mostReplyLine
		}
		s.line = append(s.line, p[:end+1]...)
		p = p[end+1:]
		if len(s.line) > mostReplyLine || !s.head() {
			return false
		}
		s.line = s.line[:0]
	}
	return true
}

// head reads a whole line: a simple reply, or the length of a string or array.
func (s *replyScanner) head() bool {
	s.bytes += len(s.line)
	switch kind, rest := s.line[0], bytes.TrimRight(s.line[1:], "\r\n"); kind {
	case '+', '-', ':':
		s.ended()
	case '$':
		return s.announce(rest, s.text)
	case '*':
		return s.announce(rest, s.array)
	default:
		return false
	}
	return s.bytes <= mostReplyBytes
}

// announce reads a length; -1 stands for nil.
func (s *replyScanner) announce(text []byte, length func(int)) bool {
	n, err := strconv.Atoi(string(text))
	if err != nil || n < -1 || n > mostReplyBytes {
		return false
	}
	if n == -1 {
		s.ended()
	} else {
		length(n)
	}
	return s.bytes <= mostReplyBytes && s.elements <= mostReplyElements && len(s.open) <= mostReplyDepth
}

func (s *replyScanner) text(n int) {
	s.bytes += n
	s.skip = n + len("\r\n")
}

func (s *replyScanner) array(n int) {
	s.elements += n
	if n == 0 {
		s.ended()
		return
	}
	s.open = append(s.open, n)
}

// ended counts an element off its array, and every array that ends with it.
func (s *replyScanner) ended() {
	for last := len(s.open) - 1; last >= 0; last-- {
		if s.open[last]--; s.open[last] > 0 {
			return
		}
		s.open = s.open[:last]
	}
	s.bytes, s.elements = 0, 0
}
