package rawhttp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Conn is one connection on which a goroutine sends and waits.
type Conn struct {
	conn net.Conn
	in   inbox
	out  []byte
}

// Dial connects.
func Dial(ctx context.Context, addr string) (*Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Conn{conn: conn}, nil
}

// Close cuts the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// Buffer returns an empty buffer for the next request.
func (c *Conn) Buffer() []byte { return c.out[:0] }

// Send sends a request without waiting for the response.
func (c *Conn) Send(request []byte) error {
	c.out = request
	_, err := c.conn.Write(request)
	return err
}

// Do sends a request and returns its response, which is valid until the next call. If ctx ends,
// the connection can't be used any more.
func (c *Conn) Do(ctx context.Context, request []byte) (*Response, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.Send(request); err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	resp, err := c.receive()
	if err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	return resp, nil
}

func (c *Conn) receive() (*Response, error) {
	c.in.reset()
	for {
		n, err := c.conn.Read(c.in.space())
		if err != nil {
			return nil, err
		}
		resp, err := c.in.arrived(n)
		if !errors.Is(err, errIncomplete) {
			return resp, err
		}
	}
}

// inbox collects the bytes of one response.
type inbox struct {
	buf  []byte
	have int
	resp Response
}

const firstInbox = 2 << 10

func (in *inbox) reset() { in.have = 0 }

// space returns the part of the buffer into which the next bytes are read.
func (in *inbox) space() []byte {
	switch {
	case in.buf == nil:
		in.buf = make([]byte, firstInbox)
	case in.have == len(in.buf):
		in.buf = append(in.buf, make([]byte, len(in.buf))...)
	}
	return in.buf[in.have:]
}

// arrived processes n more bytes, and returns the response if it is complete.
func (in *inbox) arrived(n int) (*Response, error) {
	in.have += n
	resp, used, err := parse(in.buf[:in.have])
	if err != nil {
		return nil, err
	}
	if used != in.have {
		return nil, fmt.Errorf("%d bytes after the answer", in.have-used)
	}
	in.resp = resp
	return &in.resp, nil
}
