package edge_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/internal/testenv"
)

// accepted connects to a Listener, and gives both sides and the server's socket.
func accepted(t *testing.T) (client, server net.Conn, socket syscall.RawConn) {
	t.Helper()
	tcp, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := edge.NewListener(tcp, edge.ListenerOptions{Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { _ = l.Close() })
	if client, err = new(net.Dialer).DialContext(context.WithoutCancel(t.Context()), "tcp", tcp.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	below := server
	for {
		above, ok := below.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		below = above.NetConn()
	}
	if socket, err = below.(syscall.Conn).SyscallConn(); err != nil {
		t.Fatal(err)
	}
	return client, server, socket
}

// The system lets up to four megabytes wait on each connection that nobody reads.
func TestLittleWaitsForWhoDoesNotRead(t *testing.T) {
	_, _, socket := accepted(t)
	bytes, err := 0, error(nil)
	if failed := socket.Control(func(fd uintptr) { bytes, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF) }); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	if bytes > 128<<10 {
		t.Errorf("%d bytes may wait in the kernel", bytes)
	}
}

// What a stranger sent over HTTP/2 before it closed the connection is not read: nobody gets
// the answers.
func TestAbandonedStreamsAreNotRead(t *testing.T) {
	client, server, socket := accepted(t)
	if _, err := io.WriteString(client, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+strings.Repeat("\x00", 4000)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, 24)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, 9)); err != nil {
		t.Fatalf("while the connection is open: %v", err)
	}
	_ = client.Close()
	testenv.Eventually(t, 10*time.Second, func() error {
		state := []unix.PollFd{{Events: unix.POLLRDHUP}}
		if err := socket.Control(func(fd uintptr) { state[0].Fd = int32(fd); _, _ = unix.Poll(state, 0) }); err != nil {
			return err
		}
		if state[0].Revents == 0 {
			return errors.New("the end has not come")
		}
		return nil
	})
	if n, err := server.Read(make([]byte, 9)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%d more bytes, %v", n, err)
	}
}
