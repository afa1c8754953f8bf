package api_test

import (
	"net"
	"testing"

	"github.com/fencelock/fencelock/api"
)

// TestHungUp looks at a connection while a goroutine waits to read from it, as
// net/http's does during a request.
func TestHungUp(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = accepted.Close() }()
	server := accepted.(*net.TCPConn)
	want(t, "hung up while open", api.HungUp(server), false)
	read := make(chan byte, 1)
	go func() {
		var next [1]byte
		_, _ = server.Read(next[:])
		read <- next[0]
	}()
	want(t, "hung up while open and read", api.HungUp(server), false)
	if _, err := client.Write([]byte("xy")); err != nil {
		t.Fatal(err)
	}
	want(t, "what is read", <-read, byte('x'))
	want(t, "hung up with more to read", api.HungUp(server), false)
	if _, err := server.Read(make([]byte, 1)); err != nil { // nothing was taken by looking
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end is seen", func() bool { return api.HungUp(server) })
	_ = server.Close()
	want(t, "hung up after our own end", api.HungUp(server), true)
}
