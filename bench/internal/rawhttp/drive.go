package rawhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Flow is the sequence of requests on one connection.
type Flow interface {
	// Next gets the response to the last request (nil at first) and the time at which it arrived,
	// and appends the next request to buf. Appending nothing ends the flow.
	Next(resp *Response, now time.Time, buf []byte) ([]byte, error)
}

// pollEvery is how often Drive checks whether ctx has ended if no response arrives.
const pollEvery = 100 * time.Millisecond

// Drive runs every flow on its own connection, all on one thread, until all flows have ended, one
// fails, or ctx ends. Connections are spread over the addresses in turn. Each response costs one
// read and one write; responses that arrive at the same time share one epoll_wait.
func Drive(ctx context.Context, addrs []string, flows []Flow) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d := &driver{}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.open(addrs, flows); err != nil {
		return err
	}
	if err := d.begin(); err != nil {
		return err
	}
	return d.loop(ctx)
}

// driver is a running Drive.
type driver struct {
	epoll  int
	opened bool
	lines  map[int32]*line
	active int
}

// line is a connection and its flow.
type line struct {
	fd   int
	flow Flow
	in   inbox
	out  []byte
}

func (d *driver) open(addrs []string, flows []Flow) (err error) {
	to := make([]unix.Sockaddr, len(addrs))
	for i, addr := range addrs {
		if to[i], err = sockaddr(addr); err != nil {
			return err
		}
	}
	if d.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	d.opened, d.lines = true, make(map[int32]*line, len(flows))
	for i, flow := range flows {
		if err := d.connect(to[i%len(to)], flow); err != nil {
			return fmt.Errorf("connect to %s: %w", addrs[i%len(to)], err)
		}
	}
	return nil
}

// sockaddr parses an IPv4 address; the local services have no others.
func sockaddr(addr string) (unix.Sockaddr, error) {
	tcp, err := net.ResolveTCPAddr("tcp4", addr)
	if err != nil {
		return nil, err
	}
	return &unix.SockaddrInet4{Port: tcp.Port, Addr: [4]byte(tcp.IP.To4())}, nil
}

func (d *driver) connect(to unix.Sockaddr, flow Flow) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d.lines[int32(fd)] = &line{fd: fd, flow: flow}
	d.active++
	if err := unix.Connect(fd, to); err != nil {
		return err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	return unix.EpollCtl(d.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// begin sends every flow's first request.
func (d *driver) begin() error {
	for _, l := range d.lines {
		if err := d.step(l, nil, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

func (d *driver) loop(ctx context.Context) error {
	var events [256]unix.EpollEvent
	for d.active > 0 {
		n, err := unix.EpollWait(d.epoll, events[:], int(pollEvery.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("epoll: %w", err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		for i := range max(n, 0) {
			if err := d.readable(d.lines[events[i].Fd]); err != nil {
				return err
			}
		}
	}
	return nil
}

// readable reads once. If there is more data, epoll reports the connection again.
func (d *driver) readable(l *line) error {
	n, err := unix.Read(l.fd, l.in.space())
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if n == 0 {
		return fmt.Errorf("the server hung up: %w", io.ErrUnexpectedEOF)
	}
	resp, err := l.in.arrived(n)
	if errors.Is(err, errIncomplete) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.step(l, resp, time.Now())
}

// step gives the flow its response, and sends the next request.
func (d *driver) step(l *line, resp *Response, now time.Time) error {
	request, err := l.flow.Next(resp, now, l.out[:0])
	if err != nil {
		return err
	}
	l.in.reset()
	if len(request) == 0 {
		d.active--
		return nil
	}
	l.out = request
	n, err := unix.Write(l.fd, request)
	if err == nil && n < len(request) {
		err = io.ErrShortWrite // cannot happen: one small request fits into the socket's buffer
	}
	return err
}

func (d *driver) close() error {
	if !d.opened {
		return nil
	}
	errs := make([]error, 0, len(d.lines)+1)
	for _, l := range d.lines {
		errs = append(errs, unix.Close(l.fd))
	}
	return errors.Join(append(errs, unix.Close(d.epoll))...)
}
