// Package delay simulates a network on one machine: a program that forwards TCP connections and
// delays all data by the same time, in each direction.
//
// It is one thread over epoll. Go's timers are a millisecond late on an idle machine, which would
// hide a delay of a tenth of a millisecond.
package delay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Command is the argument that makes the benchmark's program run as this proxy. The delay of one
// direction and the addresses to forward to follow it.
const Command = "delay"

// Listening is the line that the proxy prints first.
type Listening struct {
	Addrs []string `json:"addrs"` // one for each address that it forwards to
}

// Serve forwards until ctx ends.
func Serve(ctx context.Context, out io.Writer, args []string) (err error) {
	if len(args) < 2 {
		return errors.New("delay: needs a duration and addresses")
	}
	each, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := &proxy{delay: each, ends: map[int32]*end{}, ports: map[int32]unix.Sockaddr{}}
	defer func() { err = errors.Join(err, p.close()) }()
	listening, err := p.listen(args[1:])
	if err != nil {
		return err
	}
	line, err := json.Marshal(listening)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "%s\n", line); err != nil {
		return err
	}
	return p.loop(ctx)
}

// proxy is a running proxy.
type proxy struct {
	delay time.Duration
	epoll int
	ports map[int32]unix.Sockaddr // listening sockets, with the address to which each forwards
	ends  map[int32]*end
	queue []piece // in the order in which they are due
	spare [][]byte
}

// end is one socket of a forwarded connection.
type end struct {
	fd     int
	other  *end
	closed bool // it sends no more data
	ended  bool // it gets no more data
}

// piece is data under way. A piece without data ends its direction.
type piece struct {
	due  time.Time
	to   *end
	data []byte
}

const (
	pieceSize = 64 << 10
	first     = -20 // the priority of the proxy, above all other programs
	// lookEvery is how often an idle proxy checks whether its context has ended.
	lookEvery = 100 * time.Millisecond
)

// loop forwards data. It uses ppoll, which waits with nanosecond precision, because epoll_wait
// counts milliseconds.
func (p *proxy) loop(ctx context.Context) error {
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, first) // if permitted: a real network does not wait for a processor
	// The kernel may wake a thread 50 µs late unless the thread asks for less.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	var events [64]unix.EpollEvent
	for ctx.Err() == nil {
		timeout := unix.NsecToTimespec(p.patience().Nanoseconds())
		_, err := unix.Ppoll([]unix.PollFd{{Fd: int32(p.epoll), Events: unix.POLLIN}}, &timeout, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("ppoll: %w", err)
		}
		n, err := unix.EpollWait(p.epoll, events[:], 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("epoll: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			p.ready(e.Fd)
		}
		p.deliver()
	}
	return nil
}

// patience returns the time until the first piece is due.
func (p *proxy) patience() time.Duration {
	if len(p.queue) == 0 {
		return lookEvery
	}
	return min(lookEvery, max(0, time.Until(p.queue[0].due)))
}

// ready accepts a connection, or reads the data that arrived on one.
func (p *proxy) ready(fd int32) {
	if to, ok := p.ports[fd]; ok {
		p.accept(int(fd), to)
		return
	}
	e, ok := p.ends[fd]
	if !ok || e.closed {
		return
	}
	buf := p.buffer()
	n, err := unix.Read(e.fd, buf)
	switch {
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
		p.spare = append(p.spare, buf)
	case err != nil || n == 0:
		e.closed = true
		_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, e.fd, nil)
		p.queue = append(p.queue, piece{due: time.Now().Add(p.delay), to: e.other})
	default:
		p.queue = append(p.queue, piece{due: time.Now().Add(p.delay), to: e.other, data: buf[:n]})
	}
}

// buffer returns a spare buffer, or a new one.
func (p *proxy) buffer() []byte {
	if len(p.spare) == 0 {
		return make([]byte, pieceSize)
	}
	buf := p.spare[len(p.spare)-1]
	p.spare = p.spare[:len(p.spare)-1]
	return buf
}

// deliver writes the pieces that are due.
func (p *proxy) deliver() {
	due := 0
	for now := time.Now(); due < len(p.queue) && !p.queue[due].due.After(now); due++ {
		one := p.queue[due]
		if one.data == nil {
			p.hangUp(one.to)
			continue
		}
		write(one.to.fd, one.data)
		p.spare = append(p.spare, one.data[:pieceSize])
	}
	p.queue = append(p.queue[:0], p.queue[due:]...)
}

// write writes all of data. If the connection is broken, write stops, and the next read of the
// connection notices it.
func write(fd int, data []byte) {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		switch {
		case errors.Is(err, unix.EAGAIN):
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return
		default:
			data = data[n:]
		}
	}
}

// hangUp ends the direction towards e, after all data that was sent in it. If both directions
// have ended, it closes the connection.
func (p *proxy) hangUp(e *end) {
	_ = unix.Shutdown(e.fd, unix.SHUT_WR)
	e.ended = true
	if !e.other.ended {
		return
	}
	for _, each := range []*end{e, e.other} {
		delete(p.ends, int32(each.fd))
		_ = unix.Close(each.fd)
	}
}

func (p *proxy) accept(port int, to unix.Sockaddr) {
	client, _, err := unix.Accept4(port, unix.SOCK_CLOEXEC)
	if err != nil {
		return
	}
	server, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(server, to)
	}
	if err != nil { // the connection is closed, as if the service behind it were down
		_ = unix.Close(client)
		_ = unix.Close(server)
		return
	}
	a, b := &end{fd: client}, &end{fd: server}
	a.other, b.other = b, a
	for _, e := range []*end{a, b} {
		p.ends[int32(e.fd)] = e
		_ = unix.SetNonblock(e.fd, true)
		_ = unix.SetsockoptInt(e.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		_ = p.watch(e.fd)
	}
}

func (p *proxy) watch(fd int) error {
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}
