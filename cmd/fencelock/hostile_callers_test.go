package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// A waiter that has sent one byte of its next request and hangs up leaves the queue. The lock is not granted to it.
func TestHangUpAfterAByte(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]*process{
		"plain": start(t, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "fencelock.db")),
		"TLS":   startOverTLS(t),
	} {
		t.Run(name, func(t *testing.T) {
			defer speakTo(t, p.t, []*process{p})()
			holder := p.acquire(`{"resource":"hot","ttl_ms":60000}`)
			const body = `{"resource":"hot","wait_ms":600000,"ttl_ms":60000}`
			request := fmt.Sprintf("POST /locks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			var conns []net.Conn
			for i := range 6 {
				conn := p.dialRaw()
				conns = append(conns, conn)
				p.sendRaw(conn, request)
				p.awaitWaiting("hot", i+1)
				p.sendRaw(conn, "G")
			}
			for _, conn := range conns {
				_ = conn.Close()
			}
			p.awaitWaiting("hot", 0)
			p.release(holder)
			var lock wire.Lock
			p.wants(p.ask(&lock, "GET", "/locks/hot", ""), http.StatusOK)
			if lock.Held {
				t.Error("a caller that had hung up holds the lock")
			}
		})
	}
}

// A web page of another host name cannot reach either listener through a browser.
func TestForeignHostsAreRefused(t *testing.T) {
	t.Parallel()
	status := func(t *testing.T, address, host string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode >= 400 && resp.Header.Get("Content-Type") != wire.TypeProblem {
			t.Errorf("%d is no problem+json", resp.StatusCode)
		}
		return resp.StatusCode
	}
	file := filepath.Join(t.TempDir(), "access.txt")
	tokenFor(t, file, "reader", "--read", "*")
	for _, c := range []struct {
		name            string
		env             []string
		allowed, denied string
		anyPublic       bool
	}{
		{"by default", nil, "localhost 127.0.0.1:1 [::1]", "evil.example 10.0.0.1:8080 locks.example", false},
		{"on all addresses", []string{"FENCELOCK_LISTEN=0.0.0.0:0", "FENCELOCK_ADMIN_LISTEN=0.0.0.0:0", "FENCELOCK_INSECURE=true"}, "localhost 10.0.0.1:8080", "evil.example", false},
		{"with names", []string{"FENCELOCK_ALLOWED_HOSTS=locks.example, b"}, "localhost locks.example b:80", "evil.example", false},
		{"with access control", []string{"FENCELOCK_ACCESS_FILE=" + file}, "localhost", "evil.example", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t, append(c.env, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "fencelock.db"))...)
			public := strings.TrimPrefix(p.url, "http://") + "/healthz"
			admin := p.admin + "/metrics"
			for host := range strings.FieldsSeq(c.allowed) {
				for _, address := range []string{public, admin} {
					if got := status(t, address, host); got != http.StatusOK {
						t.Errorf("%s at %s: %d", host, address, got)
					}
				}
			}
			for host := range strings.FieldsSeq(c.denied) {
				if got := status(t, admin, host); got != http.StatusMisdirectedRequest {
					t.Errorf("%s at the admin listener: %d", host, got)
				}
				if got := status(t, public, host); (got == http.StatusMisdirectedRequest) == c.anyPublic {
					t.Errorf("%s at the public listener: %d", host, got)
				}
			}
		})
	}
}

// One caller gets only its share of the event streams, and other callers still get theirs.
func TestNobodyTakesAllStreams(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access.txt")
	greedy, modest := tokenFor(t, file, "greedy", "--read", "*"), tokenFor(t, file, "modest", "--read", "*")
	p := start(t, "FENCELOCK_ACCESS_FILE="+file, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "fencelock.db"))
	listen := func(token string) (int, net.Conn) {
		conn := p.dialRaw()
		p.sendRaw(conn, "GET /events HTTP/1.1\r\nHost: localhost\r\n"+bearer(token)+"\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, conn
	}
	const share = 64
	var last net.Conn
	for i := range share {
		var status int
		if status, last = listen(greedy); status != http.StatusOK {
			t.Fatalf("stream %d: status %d", i, status)
		}
	}
	if status, _ := listen(greedy); status != http.StatusTooManyRequests {
		t.Errorf("one stream too many: status %d", status)
	}
	if status, _ := listen(modest); status != http.StatusOK {
		t.Errorf("somebody else's stream: status %d", status)
	}
	_ = last.Close()
	p.until("its place is free again", func() bool {
		status, _ := listen(greedy)
		return status == http.StatusOK
	})
}

// A request with a header that a proxy may understand in another way is refused at once, and changes nothing.
func TestAmbiguousHeadersAreRefused(t *testing.T) {
	t.Parallel()
	const post = "POST /locks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
	for name, p := range map[string]*process{
		"plain": start(t, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "fencelock.db")),
		"TLS":   startOverTLS(t),
	} {
		t.Run(name, func(t *testing.T) {
			defer speakTo(t, p.t, []*process{p})()
			for what, text := range map[string]string{
				"length and coding": post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{\"resource\":\"r\"}\r\n0\r\n\r\n",
				"obs-fold":          post + "X-Any: thing\r\n Content-Length: 0\r\nContent-Length: 16\r\n\r\n{\"resource\":\"r\"}",
			} {
				conn := p.dialRaw()
				begun := time.Now()
				p.sendRaw(conn, text)
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil || resp.StatusCode != http.StatusBadRequest || time.Since(begun) > 5*time.Second {
					t.Errorf("%s: %v, %v, after %s", what, resp, err, time.Since(begun))
				}
			}
			var lock wire.Lock
			p.wants(p.ask(&lock, "GET", "/locks/r", ""), http.StatusOK)
			if lock.Held {
				t.Error("a refused request took a lock")
			}
		})
	}
}

// The requests of a caller that is over its limit requests= are read slowly: to refuse them costs the server as much
// as to refuse a stranger's.
func TestCallersBeyondTheirRequestsAreReadSlowly(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access.txt")
	limited := bearer(tokenFor(t, file, "limited", "--read", "*", "--requests", "0.001"))
	p := start(t, "FENCELOCK_ACCESS_FILE="+file, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "fencelock.db"))
	conn := p.dialRaw()
	answers := bufio.NewReader(conn)
	const refused, least = 30, time.Second // of 25 times 50 ms
	begun, seen := time.Now(), 0
	for seen < refused {
		p.sendRaw(conn, "GET /whoami HTTP/1.1\r\nHost: localhost\r\n"+limited+"\r\n\r\n")
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusTooManyRequests {
			seen++
		}
	}
	if took := time.Since(begun); took < least {
		t.Errorf("%d refusals over a connection in %s", refused, took)
	}
}
