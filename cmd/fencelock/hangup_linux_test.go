package main

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/internal/testenv"
)

// hangUp closes the caller's side of a connection. It returns when the server's kernel has noticed: on a busy machine
// that may otherwise be after the next request of another connection.
func hangUp(t *testing.T, conn net.Conn) {
	t.Helper()
	tcp := conn.(*net.TCPConn)
	if err := tcp.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	const finWait1, closing = 4, 11 // of Linux' tcp_states.h: closed, and not confirmed by the other side
	testenv.Eventually(t, 10*time.Second, func() error {
		var info *unix.TCPInfo
		var infoErr error
		if err := raw.Control(func(fd uintptr) {
			info, infoErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		}); err != nil {
			return err
		}
		if infoErr == nil && (info.State == finWait1 || info.State == closing) {
			return errors.New("the server's machine has not confirmed the end of a connection")
		}
		return infoErr
	})
}
