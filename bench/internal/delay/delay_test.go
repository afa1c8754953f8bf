package delay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// serve starts a proxy to the target and returns its address.
func serve(t *testing.T, delay, target string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	read, write := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(Serve(ctx, write, []string{delay, target}), write.Close()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(read).ReadBytes('\n')
	var l Listening
	if err = errors.Join(err, json.Unmarshal(line, &l)); err != nil || len(l.Addrs) != 1 {
		t.Fatalf("%s: %v", line, err)
	}
	return l.Addrs[0]
}

// echo sends back what it gets until the sender ends its direction.
func echo(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return l.Addr().String()
}

// What is sent arrives whole and in order, however much it is, and its end after it.
func TestAllArrivesAndThenTheEnd(t *testing.T) {
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", serve(t, "1ms", echo(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	sent := make([]byte, 3<<20)
	for i := range sent {
		sent[i] = byte(i * 7 >> 3)
	}
	go func() {
		_, _ = conn.Write(sent)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes, %v", len(got), len(sent), err)
	}
}

// No byte is early: a round trip takes at least twice the delay.
func TestNothingIsEarly(t *testing.T) {
	const delay = 20 * time.Millisecond
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", serve(t, delay.String(), echo(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for range 5 {
		begin := time.Now()
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took < 2*delay {
			t.Errorf("a round trip took %s", took)
		}
	}
}

// A client hears at once of a service that is down.
func TestNobodyThere(t *testing.T) {
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", serve(t, "1ms", "127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("read something")
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{nil, {"1ms"}, {"soon", "127.0.0.1:1"}, {"1ms", "nowhere"}} {
		if err := Serve(t.Context(), io.Discard, args); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
