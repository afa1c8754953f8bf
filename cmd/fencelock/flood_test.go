//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fencelock/fencelock/api/wire"
)

// What requests without credentials may cost, however they come: over 300 connections, for
// ten seconds.
const (
	floodConns     = 300
	floodTime      = 10 * time.Second
	floodMostBytes = 200 << 20
	floodSlowest   = 250 * time.Millisecond // honest callers' 99th percentile
	floodStreams   = 250                    // that an attacker tries to open on each connection
)

// TestSoakFloods measures what strangers cost, who never authenticate.
func TestSoakFloods(t *testing.T) {
	quiet := flood(t, nil, 3*time.Second)
	for _, f := range floods() {
		t.Run(f.name, func(t *testing.T) {
			got := flood(t, f.attack, floodTime)
			t.Logf("%d MB; p99 of honest callers %s in %d pairs (without a flood %s); %d requests or connections of the attacker",
				got.peak>>20, got.p99, got.pairs, quiet.p99, got.attacks)
			if got.peak > floodMostBytes {
				t.Errorf("%d MB resident, more than %d", got.peak>>20, floodMostBytes>>20)
			}
			// The attacker shares this machine's processors with the server.
			if got.p99 > max(floodSlowest, 10*quiet.p99) {
				t.Errorf("p99 of honest callers is %s", got.p99)
			}
		})
	}
}

// attacker is one of the connections of a flood.
type attacker struct {
	net.Conn
	ctx   context.Context
	count *atomic.Int64
}

// floods are the ways to send requests without credentials that have cost the most. An
// attack ends with its connection, and is begun again.
func floods() []struct {
	name   string
	attack func(*attacker)
} {
	body := func(streams uint32, header int, method, path string) func(*attacker) {
		return func(a *attacker) { a.heldStreams(streams, header, method, path) }
	}
	return []struct {
		name   string
		attack func(*attacker)
	}{
		{"h2, posts that trickle and read nothing", body(floodStreams, 0, "POST", "/locks")},
		{"h2, posts with large headers", body(floodStreams, 30_000, "POST", "/locks")},
		{"h2, pages that nobody reads", body(floodStreams, 0, "GET", "/openapi.yaml")},
		{"h2, pages with large headers", body(floodStreams, 30_000, "GET", "/openapi.yaml")},
		{"h2, large frames", (*attacker).largeFrames},
		{"h2, headers without an end", (*attacker).endlessHeaders},
		{"h1, posts that trickle", (*attacker).slowPost},
		{"h1, pages that nobody reads", (*attacker).unreadPages},
		{"h1, headers that trickle", (*attacker).slowHeader},
		{"h1, as fast as it goes", (*attacker).fast},
	}
}

// flooded is what a flood did.
type flooded struct {
	peak    int64 // resident bytes
	p99     time.Duration
	pairs   int
	attacks int64
}

func flood(t *testing.T, attack func(*attacker), long time.Duration) (got flooded) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "access.txt")
	honest := bearer(tokenFor(t, file, "honest", "--acquire", "*"))
	p := start(t, "FENCELOCK_ACCESS_FILE="+file, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "fencelock.db"))
	ctx, stop := context.WithTimeout(t.Context(), long)
	defer stop()
	var count atomic.Int64
	var attackers sync.WaitGroup
	for range floodConns {
		if attack == nil {
			break
		}
		attackers.Go(func() {
			for ctx.Err() == nil {
				strike(ctx, strings.TrimPrefix(p.url, "http://"), &count, attack)
			}
		})
	}
	var times []time.Duration
	for ctx.Err() == nil {
		begun := time.Now()
		var lease wire.Lease
		p.insist(http.StatusCreated, &lease, "POST", "/locks", `{"resource":"r","ttl_ms":60000}`, honest)
		p.insist(http.StatusNoContent, nil, "DELETE", "/leases/current", "", honest, wire.HeaderLease+": "+lease.LeaseID)
		times = append(times, time.Since(begun)/2)
	}
	got = flooded{peak: p.peak(), pairs: len(times), attacks: count.Load()}
	attackers.Wait()
	slices.Sort(times)
	got.p99 = times[len(times)*99/100]
	return got
}

// insist repeats a request that an overloaded server cannot serve, which counts as slow.
func (p *process) insist(status int, v any, method, path, body string, header ...string) {
	p.t.Helper()
	for {
		resp, err := p.try(p.t.Context(), v, method, path, body, header...)
		switch {
		case err == nil && resp.StatusCode == status:
			return
		case p.t.Context().Err() != nil, err == nil && resp.StatusCode != http.StatusServiceUnavailable:
			p.t.Fatalf("%s %s: %v, %v", method, path, resp, err)
		}
	}
}

// strike attacks over one connection until it is closed, or the flood ends.
func strike(ctx context.Context, address string, count *atomic.Int64, attack func(*attacker)) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	attack(&attacker{Conn: conn, ctx: ctx, count: count})
}

// peak is the most memory that the server has had, in bytes.
func (p *process) peak() int64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kilobytes, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return kilobytes << 10
}

// pause waits a moment; it reports false at the end of the flood.
func (a *attacker) pause(d time.Duration) bool {
	select {
	case <-a.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// h2 begins HTTP/2, with a window for answers, and reads what comes.
func (a *attacker) h2(window uint32) *http2.Framer {
	_, _ = io.WriteString(a, http2.ClientPreface)
	f := http2.NewFramer(a, bufio.NewReader(a))
	f.AllowIllegalWrites = true
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	return f
}

// fields are a request's header, padded to about so many bytes.
func fields(method, path string, size int) []byte {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, h := range [][2]string{
		{":method", method}, {":scheme", "http"}, {":authority", "localhost"}, {":path", path}, {"content-type", "application/json"},
	} {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	const most = 3000 // of a field, so that frames stay small
	for i := 0; size > 0; i, size = i+1, size-most {
		_ = e.WriteField(hpack.HeaderField{Name: fmt.Sprint("x-", i), Value: strings.Repeat("x", min(most, size)), Sensitive: true})
	}
	return block.Bytes()
}

// open opens a stream, with as many frames as its header needs.
func (a *attacker) open(f *http2.Framer, id uint32, block []byte, end bool) error {
	const frame = 16 << 10
	first := block[:min(frame, len(block))]
	block = block[len(first):]
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: len(block) == 0})
	for err == nil && len(block) > 0 {
		next := block[:min(frame, len(block))]
		block = block[len(next):]
		err = f.WriteContinuation(id, len(block) == 0, next)
	}
	a.count.Add(1)
	return err
}

// heldStreams keeps as many streams open as it can: no answer fits into their windows, and
// a stream that the server ends is opened again.
func (a *attacker) heldStreams(streams uint32, header int, method, path string) {
	f := a.h2(0)
	block := fields(method, path, header)
	var next, open atomic.Uint32
	next.Store(1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if _, reset := frame.(*http2.RSTStreamFrame); reset {
				open.Add(^uint32(0))
			}
		}
	}()
	for a.ctx.Err() == nil {
		for open.Load() < streams {
			if a.open(f, next.Add(2)-2, block, method == "GET") != nil {
				return
			}
			open.Add(1)
		}
		if method == "POST" { // a byte for one of them
			_ = f.WriteData(next.Load()-2, false, []byte("{"))
		} else if f.WritePing(true, [8]byte{}) != nil {
			return
		}
		select {
		case <-ended:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// largeFrames sends bodies in frames of a megabyte.
func (a *attacker) largeFrames() {
	f := a.h2(0)
	go func() { _, _ = io.Copy(io.Discard, a) }()
	if a.open(f, 1, fields("POST", "/locks", 0), false) != nil {
		return
	}
	_, _ = a.Write([]byte{0x0f, 0xff, 0xff, 0, 0, 0, 0, 0, 1}) // DATA of 2^20-1 bytes
	chunk := make([]byte, 64<<10)
	for sent := 0; sent < 1<<20-1-len(chunk); sent += len(chunk) {
		if _, err := a.Write(chunk); err != nil {
			return
		}
	}
	for a.pause(time.Second) { // and does not end the last one
		if _, err := a.Write([]byte{0}); err != nil {
			return
		}
	}
}

// endlessHeaders never ends the header of its first stream.
func (a *attacker) endlessHeaders() {
	f := a.h2(0)
	go func() { _, _ = io.Copy(io.Discard, a) }()
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields("POST", "/locks", 15_000)})
	more := fields("POST", "/locks", 3000)[len(fields("POST", "/locks", 0)):]
	for f.WriteContinuation(1, false, more) == nil && a.pause(10*time.Millisecond) { // 80 MB/s over all
		a.count.Add(1)
	}
}

func (a *attacker) slowPost() {
	_, _ = io.WriteString(a, "POST /locks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{")
	a.count.Add(1)
	for a.pause(100 * time.Millisecond) {
		if _, err := io.WriteString(a, " "); err != nil {
			return
		}
	}
}

func (a *attacker) slowHeader() {
	_, _ = io.WriteString(a, "POST /locks HTTP/1.1\r\nHost: localhost\r\nX-Long: "+strings.Repeat("x", 30_000))
	a.count.Add(1)
	for a.pause(100 * time.Millisecond) {
		if _, err := io.WriteString(a, "x"); err != nil {
			return
		}
	}
}

// unreadPages asks for the longest page again and again, and reads nothing.
func (a *attacker) unreadPages() {
	_ = a.Conn.(*net.TCPConn).SetReadBuffer(1)
	for range 1000 {
		if _, err := io.WriteString(a, "GET /openapi.yaml HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			return
		}
		a.count.Add(1)
	}
	<-a.ctx.Done()
}

// fast sends requests that are refused, one behind the other.
func (a *attacker) fast() {
	answers := bufio.NewReader(a)
	for {
		_, err := io.WriteString(a, "POST /locks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{\"resource\":\"r\"}")
		if err != nil {
			return
		}
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			return
		}
		a.count.Add(1)
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}
