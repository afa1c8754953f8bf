package delay

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// backlog is the number of connections that may wait for the proxy to accept them.
const backlog = 1024

// listen opens a port for each target.
func (p *proxy) listen(targets []string) (l Listening, err error) {
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return l, fmt.Errorf("epoll: %w", err)
	}
	for _, target := range targets {
		to, err := sockaddr(target)
		if err != nil {
			return l, err
		}
		addr, err := p.open(to)
		if err != nil {
			return l, fmt.Errorf("listen for %s: %w", target, err)
		}
		l.Addrs = append(l.Addrs, addr)
	}
	return l, nil
}

func (p *proxy) open(to unix.Sockaddr) (addr string, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	p.ports[int32(fd)] = to
	local := [4]byte{127, 0, 0, 1}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: local}), unix.Listen(fd, backlog), p.watch(fd)); err != nil {
		return "", err
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return "", err
	}
	at, ok := bound.(*unix.SockaddrInet4)
	if !ok {
		return "", fmt.Errorf("bound to %T", bound)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.Port), nil
}

func sockaddr(addr string) (unix.Sockaddr, error) {
	tcp, err := net.ResolveTCPAddr("tcp4", addr)
	if err != nil {
		return nil, err
	}
	return &unix.SockaddrInet4{Port: tcp.Port, Addr: [4]byte(tcp.IP.To4())}, nil
}

func (p *proxy) close() error {
	var errs []error
	for fd := range p.ports {
		errs = append(errs, unix.Close(int(fd)))
	}
	for fd := range p.ends {
		errs = append(errs, unix.Close(int(fd)))
	}
	if p.epoll != 0 {
		errs = append(errs, unix.Close(p.epoll))
	}
	return errors.Join(errs...)
}
