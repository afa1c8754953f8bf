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

// The limits of one reply. The largest reply of a sound node is a page of locks with all their metadata, a few
// megabytes. The library allocates the length that a reply announces before its bytes arrive. Without limits,
// one line of a broken node could therefore crash the whole service.
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

// limited wraps a connection. If the connection is a syscall.Conn, so is the wrapper: the library uses that
// interface to check a connection before reuse.
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

// Read returns bytes that are within the limits.
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

// readArrived reads bytes that arrived before the deadline, after the deadline. A process that was not
// scheduled may see the deadline before it sees the reply, through no fault of the node. The library sets a
// new deadline for the next command.
func (c *limitedConn) readArrived(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(arrivedLimit)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// replyScanner parses only the lengths in a stream of RESP2 replies.
type replyScanner struct {
	line     []byte // the beginning of a line whose end has not arrived
	skip     int    // bytes of a string that have not arrived, including its line end
	open     []int  // for each enclosing array: the elements that have not arrived
	bytes    int    // size of the present reply
	elements int    // elements of all arrays in the present reply
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

// ended counts an element of the innermost array. It closes every array that this element completes.
func (s *replyScanner) ended() {
	for last := len(s.open) - 1; last >= 0; last-- {
		if s.open[last]--; s.open[last] > 0 {
			return
		}
		s.open = s.open[:last]
	}
	s.bytes, s.elements = 0, 0
}
