package api

import (
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// pair is a connection of two ends.
func pair(t *testing.T) (server, caller net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	caller, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = server.Close(), caller.Close() })
	return server, caller
}

// A connection is watched once more after it was given back; who has stopped is
// told nothing; and nothing is left running when nobody is watched.
func TestHangupsAreTold(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere a goroutine watches each connection, see TestParkedOnWhatIsNoSocket")
	}
	var h hangups
	server, caller := pair(t)
	silent := func() { t.Error("who had stopped watching was told") }
	for range 3 {
		stop, ok := h.watch(server, silent)
		if !ok {
			t.Fatal("a socket cannot be watched")
		}
		stop()
	}
	gone := make(chan struct{})
	if _, ok := h.watch(server, func() { close(gone) }); !ok {
		t.Fatal("a socket cannot be watched again")
	}
	if _, err := caller.Write([]byte("the next request, early")); err != nil {
		t.Fatal(err)
	}
	if err := caller.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Fatal("a caller hung up, behind bytes that nobody has read, and nobody was told")
	}
	testenv.Eventually(t, 10*time.Second, h.idle)
}

// What is no socket itself, as a connection over TLS, is read from.
func TestParkedOnWhatIsNoSocket(t *testing.T) {
	for _, hangsUp := range []bool{true, false} {
		left := make(chan struct{})
		server, caller := net.Pipe()
		p := &parked{wait: &wait{server: &Server{}, leave: func() { close(left) }}, conn: server}
		p.watchCaller()
		if hangsUp {
			_ = caller.Close()
			select {
			case <-left:
			case <-time.After(10 * time.Second):
				t.Fatal("the caller hung up, and the request stays in line")
			}
		}
		p.unwatch()
		if p.hungUp != hangsUp {
			t.Errorf("hung up: %t, want %t", p.hungUp, hangsUp)
		}
		_, _ = server.Close(), caller.Close()
	}
}
