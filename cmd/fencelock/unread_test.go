//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fencelock/fencelock/internal/testenv"
)

// The highest cost of known callers who read no responses: four callers with 200 connections each, for a minute, in a
// container of 512 MiB.
const (
	unreadCallers   = 4
	unreadConns     = 200
	unreadStreams   = 100
	unreadTime      = time.Minute
	unreadMostBytes = 512 << 20
)

const unreadTokens = "FENCELOCK_TEST_UNREAD_TOKENS"

// TestUnreadResponses measures the cost of responses that nobody reads, while another caller locks and releases.
func TestUnreadResponses(t *testing.T) {
	testenv.Soak(t, "callers with credentials that read nothing and take the server's memory")
	if name := os.Getenv(floodName); name != "" {
		leaveUnread(name, os.Getenv(floodTarget), strings.Fields(os.Getenv(unreadTokens)))
		return
	}
	for _, name := range []string{"h2 record", "h2 batch", "h2 list", "h2 events", "h1 record", "h1 list"} {
		t.Run(name, func(t *testing.T) { unread(t, name) })
	}
}

func unread(t *testing.T, name string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "access.txt")
	honest := bearer(tokenFor(t, file, "honest", "--acquire", "*"))
	var tokens []string
	for i := range unreadCallers {
		tokens = append(tokens, tokenFor(t, file, fmt.Sprint("reader", i), "--read", "*"))
	}
	p := start(t, "GOMEMLIMIT=460MiB", "FENCELOCK_ACCESS_FILE="+file, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "fencelock.db"))
	p.fillForReaders(honest)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), unreadTime)
	defer stop()
	attacker := exec.CommandContext(ctx, self, "-test.run=^TestUnreadResponses$")
	attacker.Env = append(os.Environ(), floodName+"="+name, floodTarget+"="+strings.TrimPrefix(p.url, "http://"), unreadTokens+"="+strings.Join(tokens, " "))
	if err := attacker.Start(); err != nil {
		t.Fatal(err)
	}
	var queued atomic.Int64
	var watching sync.WaitGroup
	watching.Go(func() { p.watchQueues(ctx, &queued) })
	var times []time.Duration
	for ctx.Err() == nil {
		times = append(times, p.honestPair(honest, len(times)))
	}
	_ = attacker.Wait() // it was ended
	watching.Wait()
	all := p.peak() + queued.Load()
	t.Logf("%d MB, of which %d in the kernel; p99 of an honest caller %s in %d pairs", all>>20, queued.Load()>>20, slowest(times), len(times))
	if all > unreadMostBytes {
		t.Errorf("%d MB, more than %d", all>>20, unreadMostBytes>>20)
	}
}

// fillForReaders makes large things to read: a record, and locks with metadata.
func (p *process) fillForReaders(credentials string) {
	p.t.Helper()
	large := fmt.Sprintf("%q", strings.Repeat("x", 60_000))
	p.insist(nil, "PUT", "/guarded/large", large, credentials, "Fencing-Token: 1")
	for i := range 100 {
		body := fmt.Sprintf(`{"resource":"listed/%d","ttl_ms":60000,"metadata":{"x":%q}}`, i, strings.Repeat("x", 800))
		p.insist(nil, "POST", "/locks", body, credentials)
	}
}

// leaveUnread sends requests and never reads, until its process is ended.
func leaveUnread(name, target string, tokens []string) {
	version, what, _ := strings.Cut(name, " ")
	method, path, body := http.MethodGet, map[string]string{"record": "/guarded/large", "list": "/locks", "events": "/events?recent=1000"}[what], ""
	if what == "batch" {
		method, path = http.MethodPost, "/locks/batch"
		body = `{"operations":[` + strings.TrimSuffix(strings.Repeat(`{"operation":"extend","lease_id":"x"},`, 128), ",") + `]}`
	}
	var readers sync.WaitGroup
	for _, token := range tokens {
		for range unreadConns {
			readers.Go(func() {
				for {
					conn, err := net.Dial("tcp", target)
					if err != nil {
						time.Sleep(100 * time.Millisecond)
						continue
					}
					_ = conn.(*net.TCPConn).SetReadBuffer(1)
					if version == "h1" {
						stallH1(conn, path, token)
					} else {
						(&unreadConn{Conn: conn, window: 65535}).open(method, path, body, token)
					}
					_ = conn.Close()
				}
			})
		}
	}
	readers.Wait()
}

// stallH1 sends requests again and again, until the server ends the connection.
func stallH1(conn net.Conn, path, token string) {
	for {
		if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n"+bearer(token)+"\r\n\r\n"); err != nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// unreadConn is an HTTP/2 connection with a flow-control window of zero for each response.
type unreadConn struct {
	net.Conn
	writing sync.Mutex
	mu      sync.Mutex
	window  int // what the server takes of bodies
	free    int // streams that it takes
	update  chan struct{}
}

// open keeps as many streams open as the server accepts.
func (c *unreadConn) open(method, path, body, token string) {
	_, _ = io.WriteString(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	c.free, c.update = unreadStreams, make(chan struct{}, 1)
	ended := make(chan struct{})
	go func() { defer close(ended); c.follow(f) }()
	block := fields(method, path, 0)
	var more strings.Builder
	_ = hpack.NewEncoder(&more).WriteField(hpack.HeaderField{Name: "authorization", Value: "Bearer " + token, Sensitive: true})
	block = append(block, more.String()...)
	for id := uint32(1); ; {
		c.mu.Lock()
		ok := c.free > 0 && c.window >= len(body)
		if ok {
			c.free--
			c.window -= len(body)
		}
		c.mu.Unlock()
		if !ok {
			select {
			case <-c.update:
				continue
			case <-ended:
				return
			}
		}
		c.writing.Lock()
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndStream: body == "", EndHeaders: true})
		if err == nil && body != "" {
			err = f.WriteData(id, true, []byte(body))
		}
		c.writing.Unlock()
		if err != nil {
			return
		}
		id += 2
	}
}

// follow notes the streams that the server ends, and how much of the bodies the server reads.
func (c *unreadConn) follow(f *http2.Framer) {
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		c.mu.Lock()
		switch frame := frame.(type) {
		case *http2.RSTStreamFrame:
			c.free++
		case *http2.WindowUpdateFrame:
			if frame.StreamID == 0 {
				c.window += int(frame.Increment)
			}
		case *http2.PingFrame: // a caller that answers them stays
			if !frame.IsAck() {
				go c.answer(f, frame.Data)
			}
		}
		c.mu.Unlock()
		select {
		case c.update <- struct{}{}:
		default:
		}
	}
}

func (c *unreadConn) answer(f *http2.Framer, ping [8]byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = f.WritePing(true, ping)
}
