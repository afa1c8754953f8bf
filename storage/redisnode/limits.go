package redisnode

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// The limits of one reply. The largest reply of a sound node is a page of locks with
// all their metadata, a few megabytes. The library allocates whatever length a reply
// announces before its bytes have arrived, so without limits one line of a broken node
// could end the whole service.
const (
	maxReplyBytes    = 64 << 20
	maxReplyElements = 1 << 20
	maxReplyDepth    = 8
	maxReplyLine     = 64 << 10
)

var errReplyLimit = errors.New("the node's reply is malformed, or larger than any this service asks for")

// limitedDialer connects as the library would, and checks replies before the library
// reads them.
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

// limited wraps a connection. A syscall.Conn stays one: the library uses that to check
// a connection before it uses it again.
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

// Read returns what is within the limits.
func (c *limitedConn) Read(p []byte) (int, error) {
	if c.broken {
		return 0, errReplyLimit
	}
	n, err := c.Conn.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		n, err = c.readArrived(p)
	}
	if !c.replies.scan(p[:n]) {
		c.broken = true
		_ = c.Close() // the beginning of the next reply is unknown
		return 0, errReplyLimit
	}
	return n, err
}

// arrivedLimit is how long readArrived waits.
const arrivedLimit = time.Millisecond

// readArrived reads after the deadline what has arrived before it. A process that got no
// processor time sees the deadline before it sees the reply, and the node is not to blame.
// The library sets the deadline again for the next command.
func (c *limitedConn) readArrived(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(arrivedLimit)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// replyScanner follows a stream of RESP2 replies as far as their lengths.
type replyScanner struct {
	line     []byte // the beginning of a line whose end has not arrived
	skip     int    // bytes of a string that have not arrived, its line end included
	open     []int  // for each enclosing array: elements that have not arrived
	bytes    int    // of the present reply
	elements int    // of its arrays
}

// scan takes the next bytes and reports whether they are within the limits.
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
			return len(s.line) <= maxReplyLine
		}
		s.line = append(s.line, p[:end+1]...)
		p = p[end+1:]
		if len(s.line) > maxReplyLine || !s.head() {
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
	return s.bytes <= maxReplyBytes
}

// announce reads a length; -1 stands for nil.
func (s *replyScanner) announce(text []byte, length func(int)) bool {
	n, err := strconv.Atoi(string(text))
	if err != nil || n < -1 || n > maxReplyBytes {
		return false
	}
	if n == -1 {
		s.ended()
	} else {
		length(n)
	}
	return s.bytes <= maxReplyBytes && s.elements <= maxReplyElements && len(s.open) <= maxReplyDepth
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

// ended counts an element of its array, and ends every array whose last it was.
func (s *replyScanner) ended() {
	for last := len(s.open) - 1; last >= 0; last-- {
		if s.open[last]--; s.open[last] > 0 {
			return
		}
		s.open = s.open[:last]
	}
	s.bytes, s.elements = 0, 0
}
