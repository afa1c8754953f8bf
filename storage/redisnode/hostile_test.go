package redisnode_test

import (
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// hostileServer accepts connections, and passes each to talk when its first request has come.
func hostileServer(t *testing.T, talk func(net.Conn)) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				talk(conn)
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close(); running.Wait() })
	return listener.Addr().String()
}

// answering sends the same reply to every command.
func answering(text string) func(net.Conn) {
	return func(conn net.Conn) {
		buf := make([]byte, 64<<10)
		for {
			if _, err := conn.Read(buf); err != nil {
				return
			}
			if _, err := io.WriteString(conn, text); err != nil {
				return
			}
		}
	}
}

func packed(text string) string { return "$" + strconv.Itoa(len(text)) + "\r\n" + text + "\r\n" }

const afterTheGreeting = " after the greeting"

// hostileTalks are texts that a server sends in reply to everything. Each is also sent by a server that first greets
// as Redis does: only the replies of that one are taken for replies to a script.
func hostileTalks() map[string]func(net.Conn) {
	all := make(map[string]func(net.Conn))
	for name, talk := range talks() {
		all[name] = talk
		all[name+afterTheGreeting] = func(conn net.Conn) {
			if _, err := conn.Read(make([]byte, 64<<10)); err != nil {
				return
			}
			if _, err := io.WriteString(conn, "-ERR unknown command 'HELLO'\r\n"); err == nil {
				talk(conn)
			}
		}
	}
	return all
}

func talks() map[string]func(net.Conn) {
	endless := func(text string) func(net.Conn) {
		return func(conn net.Conn) {
			buf := make([]byte, 1024)
			_, _ = conn.Read(buf)
			for {
				if _, err := io.WriteString(conn, text); err != nil {
					return
				}
			}
		}
	}
	return map[string]func(net.Conn){
		"closes":                func(conn net.Conn) { _, _ = conn.Read(make([]byte, 64<<10)) },
		"closes at once":        func(net.Conn) {},
		"HTTP":                  answering("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
		"garbage":               answering("\x00\xff\x7f\r\n\n\r{}[]"),
		"lines of nothing":      answering("\r\n\r\n"),
		"errors":                answering("-ERR whatever\r\n"),
		"an error without text": answering("-\r\n"),
		"OK":                    answering("+OK\r\n"),
		"numbers":               answering(":9223372036854775807\r\n"),
		"nil":                   answering("$-1\r\n"),
		"empty array":           answering("*0\r\n"),
		"a short array":         answering("*1\r\n+OK\r\n"),
		"messages":              answering("*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\ny\r\n"),
		"a short message":       answering("*1\r\n$7\r\nmessage\r\n"),
		"a message of numbers":  answering("*3\r\n$7\r\nmessage\r\n:1\r\n:2\r\n"),
		"a short subscription":  answering("*1\r\n$9\r\nsubscribe\r\n"),
		"a pong":                answering("*1\r\n$4\r\npong\r\n"),
		"array of nil":          answering("*3\r\n*-1\r\n$-1\r\n:1\r\n"),
		"NOSCRIPT for ever":     answering("-NOSCRIPT No matching script\r\n"),
		"a huge text":           answering("$2000000000\r\n"),
		"a text beyond numbers": answering("$9223372036854775807\r\n"),
		"a huge array":          answering("*2000000000\r\n"),
		"arrays in arrays":      answering(strings.Repeat("*1\r\n", 100_000)),
		"an endless line":       endless(strings.Repeat("x", 4096)),
		"an endless array":      endless("*1000000\r\n:1\r\n"),
		"endless texts":         endless("$1000\r\n" + strings.Repeat("x", 1000) + "\r\n"),
		"a map":                 answering("%1\r\n+a\r\n+b\r\n"),
		"no MessagePack":        answering(packed("no MessagePack")),
		"a cut array":           answering(packed("\xdd\xff\xff\xff\xff\xa1N")),
		"too few answers":       answering(packed("\x90")),
		"an answer of no kind":  answering(packed("\x91\xc0")),
		"an unreadable answer":  answering(packed("\x91\xa3G x")),
		"an empty answer":       answering(packed("\x91\xa0")),
		"marks of no number":    answering("*4\r\n+M\r\n+x\r\n+1\r\n+1\r\n"),
		"negative marks":        answering("*4\r\n+M\r\n+-1\r\n+1\r\n+1\r\n"),
		"a page of nonsense":    answering("*3\r\n+L\r\n+0\r\n*3\r\n+r\r\n+x\r\n+y\r\n"),
		"nothing":               func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) },
	}
}

// A node that sends nonsense fails soon, and nothing else fails: the nonsense is not taken for a reply, and neither
// the process nor its memory suffers.
func TestHostileServer(t *testing.T) {
	for name, talk := range hostileTalks() {
		t.Run(name, func(t *testing.T) {
			g := &gauges{}
			server := openNode(t, hostileServer(t, talk), redisnode.Options{Timeout: 100 * time.Millisecond, Meters: g.of})
			server.Join(node.Cluster{Nodes: 3, Hash: "c0ffee"})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range 3 {
				op := node.Op{Kind: node.OpAcquire, Epoch: 1, Resource: "a", Owner: "L1", TTL: time.Minute}
				began := time.Now()
				r, err := nodetest.Submit(server, op)
				if err != nil || r.Outcome != node.Failed || r.Err == nil || r.Grant != 0 {
					t.Errorf("%+v, %v", r, err)
				}
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("failed after %s", took)
				}
			}
			if counted, want := g.miscounted.Load() > 0, name == "too few answers"+afterTheGreeting || name == "a cut array"+afterTheGreeting; counted != want {
				t.Errorf("another number of replies than operations was noticed: %t", counted)
			}
			askHostile(t, server, name)
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > 512<<20 {
				t.Errorf("%d MB of memory were asked for", used>>20)
			}
		})
	}
}

// askHostile makes every other call. None may succeed, except a listing of nothing, and a call to which the nonsense
// is the reply of a node that has carried it out.
func askHostile(t *testing.T, server *redisnode.Node, talk string) {
	t.Helper()
	ctx, cancel := contextFor(t, 500*time.Millisecond) // for all of them together
	defer cancel()
	a := node.Admission{Incarnation: "x", Epoch: 2, Cluster: node.Cluster{Nodes: 3, Hash: "c0ffee"}}
	seen, observed := server.Observe(ctx)
	_, fenced := server.InstallEpoch(ctx, 2)
	locks, _, surveyed := server.Survey(ctx, 1, "")
	counters, counted := server.Counters(ctx, 1, []string{"a"})
	if surveyed == nil && len(locks) > 0 || observed == nil && seen.Admitted || counted == nil && len(counters) > 0 {
		t.Errorf("locks %+v, seen %+v, counters %v", locks, seen, counters)
	}
	for what, err := range map[string]error{
		"install epoch": fenced, "load": server.Load(ctx, a, nil), "raise": server.RaiseMaxTTL(ctx, time.Minute),
	} {
		said := what == "load" && talk == "OK"+afterTheGreeting || what == "raise" && talk == "a short array"+afterTheGreeting
		if err == nil && !said {
			t.Errorf("%s succeeded", what)
		}
	}
}

// Wrong replies of one kind must not be taken for replies of another kind.
func TestWakesFromAHostileServer(t *testing.T) {
	for name, talk := range hostileTalks() {
		if name = strings.TrimSuffix(name, afterTheGreeting); name == "nothing" || name == "messages" {
			continue // it waits, or gets a notification, as it should
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := openNode(t, hostileServer(t, talk), redisnode.Options{Timeout: 100 * time.Millisecond})
			var done sync.WaitGroup
			ctx, cancel := contextFor(t, 300*time.Millisecond)
			defer cancel()
			done.Go(func() { server.Subscribe(ctx, "s1", noWakes{t}) })
			done.Wait()
		})
	}
}

type noWakes struct{ *testing.T }

func (n noWakes) Subscribed()                  {}
func (n noWakes) Wake(r string, t node.Ticket) { n.Errorf("notified: %q, %+v", r, t) }
