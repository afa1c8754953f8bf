package chaos

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// hostile is a program that is configured as a Redis node but is not one.
type hostile struct {
	listener net.Listener
	say      atomic.Pointer[lie]
	running  sync.WaitGroup
	asked    atomic.Int64
}

// lie responds to what a connection sent, or returns an error to close the connection.
type lie func(conn net.Conn, asked []byte) error

func startHostile(t *testing.T) *hostile {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{listener: l}
	silent := lie(func(net.Conn, []byte) error { return nil })
	h.say.Store(&silent)
	h.running.Go(h.serve)
	t.Cleanup(func() {
		_ = l.Close()
		h.running.Wait()
	})
	return h
}

func (h *hostile) serve() {
	for {
		conn, err := h.listener.Accept()
		if err != nil {
			return
		}
		h.running.Go(func() {
			defer func() { _ = conn.Close() }()
			buf := make([]byte, 64<<10)
			for {
				_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
				n, err := conn.Read(buf)
				if err != nil {
					return
				}
				h.asked.Add(1)
				if (*h.say.Load())(conn, buf[:n]) != nil {
					return
				}
			}
		})
	}
}

// says responds to every command with the same text.
func says(text string) lie {
	return func(conn net.Conn, asked []byte) error {
		_, err := io.WriteString(conn, strings.Repeat(text, max(1, bytes.Count(asked, []byte("*")))))
		return err
	}
}

// floods sends a head and then the same piece for ever.
func floods(head, piece string) lie {
	return func(conn net.Conn, _ []byte) error {
		_, err := io.WriteString(conn, head)
		block := strings.Repeat(piece, 64<<10/len(piece))
		for err == nil {
			_, err = io.WriteString(conn, block)
		}
		return err
	}
}

// lies are wrong replies of a node.
func lies() map[string]lie {
	return map[string]lie{
		"nothing":             func(net.Conn, []byte) error { return nil },
		"hangs up":            func(net.Conn, []byte) error { return io.EOF },
		"garbage":             says("\x00\xff\x13garbage\r\n\n\r"),
		"numbers":             says(":9223372036854775807\r\n"),
		"negative":            says(":-1\r\n"),
		"OK":                  says("+OK\r\n"),
		"null":                says("$-1\r\n"),
		"errors":              says("-ERR go away\r\n"),
		"NOSCRIPT":            says("-NOSCRIPT No matching script\r\n"),
		"MOVED":               says("-MOVED 1 127.0.0.1:1\r\n"),
		"empty arrays":        says("*0\r\n"),
		"nested arrays":       says(strings.Repeat("*1\r\n", 10_000) + ":1\r\n"),
		"a huge array":        says("*2147483647\r\n"),
		"a huge string":       says("$2147483647\r\nx"),
		"impossible lengths":  says("$99999999999999999999\r\n"),
		"negative lengths":    says("*-7\r\n$-9\r\n"),
		"half a reply":        says("$100\r\nhalf"),
		"MessagePack rubbish": says("$6\r\n\xdd\xff\xff\xff\xff\xc1\r\n"),
		"granted for ever":    says("$28\r\n\x91\xb8G 9007199254740991 60000 1 \r\n"),
		"an endless line":     floods("+", "x"),
		"an endless string":   floods("$2000000000\r\n", "x"),
		"endless replies":     floods("", "+OK\r\n"),
		"an endless array":    floods("*2000000000\r\n", ":1\r\n"),
		"push messages":       says(">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\ny\r\n"),
		"RESP3 rubbish":       says("%1\r\n~1\r\n#t\r\n,nan\r\n(12345678901234567890\r\n"),
	}
}

// One of three nodes is hostile. Locks are still taken and released at once, and the server's memory does not grow.
func TestHostileNode(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 2)
	h := startHostile(t)
	s := startServer(t, "server-0",
		fmt.Sprintf("FENCELOCK_REDIS_ADDRS=%s,%s,%s", nodes[0].Addr(), h.listener.Addr(), nodes[1].Addr()),
		"FENCELOCK_MAX_TTL=2s")
	a := newAbused(t, s)
	a.awaitReady()
	before := a.usage()
	for name, lie := range lies() {
		t.Run(name, func(t *testing.T) {
			h.say.Store(&lie)
			asked := h.asked.Load()
			began, worst := time.Now(), time.Duration(0)
			for n := 0; n < 30 || h.asked.Load() == asked && time.Since(began) < 5*time.Second; n++ {
				worst = max(worst, a.cycle(t, fmt.Sprintf("hostile/%d", n%10)))
			}
			if worst > 3*time.Second {
				t.Errorf("a lock took %s", worst)
			}
		})
	}
	silent := lies()["hangs up"]
	h.say.Store(&silent)
	a.awaitUsage(before, 30*time.Second)
}

// cycle takes and releases a lock, and returns how long that took.
func (a *abused) cycle(t *testing.T, resource string) time.Duration {
	t.Helper()
	began := time.Now()
	o := &op{Resource: resource}
	answer := a.stand.send(t.Context(), 0, request{method: http.MethodPost, path: "/locks", body: fmt.Sprintf(`{"resource":%q}`, resource)})
	if o.readLease(&answer); o.Lease == "" {
		t.Fatalf("no lock while a quorum is sound: %d %s", answer.status, answer.body)
	}
	answer = a.stand.send(t.Context(), 0, request{method: http.MethodDelete, path: "/leases/current", header: leaseHeader(o.Lease)})
	if answer.status != http.StatusNoContent {
		t.Fatalf("release: %d %s", answer.status, answer.body)
	}
	return time.Since(began)
}
