package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
)

func TestStory(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "locks.db")
	p := start(t, "FENCELOCK_DATA="+data)

	first := p.acquire(`{"resource":"orders/42","holder":"worker-1","ttl_ms":60000,"metadata":{"n":1}}`)
	var held wire.Problem
	resp := p.ask(&held, "POST", "/locks", `{"resource":"orders/42","holder":"worker-2"}`)
	p.wants(resp, http.StatusConflict)
	if held.HeldDetails == nil || held.Holder != "worker-1" || held.FencingToken != first.FencingToken || resp.Header.Get("Retry-After") == "" {
		t.Errorf("refusal %+v", held)
	}
	var seen wire.Lock
	p.wants(p.ask(&seen, "GET", "/locks/orders/42", ""), http.StatusOK)
	if !seen.Held || *seen.Holder != "worker-1" || string(seen.Metadata) != `{"n":1}` {
		t.Errorf("lock %+v", seen)
	}
	var page wire.LockPage
	p.wants(p.ask(&page, "GET", "/locks?prefix=orders/", ""), http.StatusOK)
	if len(page.Locks) != 1 || page.Locks[0].Resource != "orders/42" {
		t.Errorf("page %+v", page)
	}
	var extended wire.Lease
	p.wants(p.ask(&extended, "POST", "/leases/current/extend", `{"ttl_ms":30000}`, "Fencelock-Lease: "+first.LeaseID), http.StatusOK)
	if extended.FencingToken != first.FencingToken {
		t.Errorf("extended under token %d, want %d", extended.FencingToken, first.FencingToken)
	}

	// The administrator breaks the lock, the next holder writes, and the first
	// one, which knows nothing of it, is refused.
	p.breaks("orders/42")
	second := p.acquire(`{"resource":"orders/42","holder":"worker-2"}`)
	if second.FencingToken <= first.FencingToken {
		t.Fatalf("token %d after %d", second.FencingToken, first.FencingToken)
	}
	token := func(l wire.Lease) string { return "Fencing-Token: " + strconv.FormatInt(l.FencingToken, 10) }
	p.wants(p.ask(nil, "POST", "/guarded/orders/42", "", token(second)), http.StatusOK)
	p.wants(p.ask(nil, "PUT", "/guarded/orders/42", `{"by":1}`, token(first)), http.StatusPreconditionFailed)
	p.wants(p.ask(nil, "PUT", "/guarded/orders/42", `{"by":2}`, token(second)), http.StatusOK)
	var stale wire.Problem
	p.wants(p.ask(&stale, "POST", "/guarded/orders/42", "", token(first)), http.StatusPreconditionFailed)
	if stale.StaleDetails == nil || stale.Presented != first.FencingToken || stale.HighestToken != second.FencingToken {
		t.Errorf("refusal %+v", stale)
	}
	p.wants(p.ask(nil, "POST", "/leases/current/extend", "", "Fencelock-Lease: "+first.LeaseID), http.StatusNotFound)
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+first.LeaseID), http.StatusNotFound)
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+second.LeaseID), http.StatusNoContent)

	// A restart keeps the record, its history, and the order of the tokens.
	p.Signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Fatalf("exit code %d after SIGTERM", code)
	}
	p = start(t, "FENCELOCK_DATA="+data)
	var record wire.Record
	p.wants(p.ask(&record, "GET", "/guarded/orders/42", ""), http.StatusOK)
	if string(record.Value) != `{"by":2}` || record.Version != 1 || record.HighestToken != second.FencingToken {
		t.Errorf("record after the restart: %+v", record)
	}
	var history wire.HistoryPage
	p.wants(p.ask(&history, "GET", "/history?resource=orders/42", ""), http.StatusOK)
	if len(history.Attempts) != 4 || history.Attempts[0].Accepted || !history.Attempts[1].Accepted {
		t.Errorf("history after the restart: %+v", history)
	}
	if third := p.acquire(`{"resource":"orders/42"}`); third.FencingToken <= second.FencingToken {
		t.Errorf("token %d after %d", third.FencingToken, second.FencingToken)
	}

	for _, name := range []string{`fencelock_http_requests_total{code="201",method="POST",route="/locks"} 1`, "go_goroutines", "process_open_fds"} {
		p.until("/metrics has "+name, func() bool { // a request is counted just after its answer
			resp, err := http.Get("http://" + p.admin + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			metrics, _ := io.ReadAll(resp.Body)
			return strings.Contains(string(metrics), name)
		})
	}
}

// TestBannerLinesWork pastes what the server prints into a shell.
func TestBannerLinesWork(t *testing.T) {
	t.Parallel()
	testenv.Installed(t, "curl", "curl")
	if p := start(t); p.Stdout() != "" {
		t.Errorf("a program that reads JSON lines gets %q", p.Stdout())
	}
	people := command(t, append(anyPorts(), "FENCELOCK_LOG_FORMAT=text"), "serve")
	var stdout testenv.Buffer
	people.Stdout = &stdout
	if err := people.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = people.Process.Kill()
		_ = people.Wait() // it was killed
	})
	testenv.Eventually(t, patience, func() error {
		if text := stdout.String(); !strings.HasSuffix(text, "\n\n") || !strings.Contains(text, "412") {
			return fmt.Errorf("the banner is not complete: %s", text)
		}
		return nil
	})
	text := stdout.String()
	if !strings.Contains(text, "single node, durable, no high availability") {
		t.Errorf("the banner does not say what it is: %s", text)
	}
	var script strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  ") {
			script.WriteString(line)
		}
	}
	// Leases of a second leave each request 100 ms, which a busy machine may not have.
	lines := script.String()
	slow := strings.NewReplacer(`"ttl_ms":1000`, `"ttl_ms":5000`, "sleep 1.5", "sleep 5.5").Replace(lines)
	if strings.Count(slow, `"ttl_ms":5000`) != 2 || strings.Count(slow, "sleep 5.5") != 1 {
		t.Fatalf("two leases of a second with 1.5 seconds between them are to be in\n%s", lines)
	}
	out, err := exec.Command("sh", "-c", slow).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ok, stale := bytes.Index(out, []byte("HTTP/1.1 200 OK")), bytes.Index(out, []byte("HTTP/1.1 412 Precondition Failed"))
	if ok < 0 || stale < ok {
		t.Errorf("the lines do not end in a 200 and a 412:\n%s\n%s", slow, out)
	}
}

func TestSecondServerOnTheSameFileIsRefused(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "locks.db")
	start(t, "FENCELOCK_DATA="+data)
	out, err := command(t, []string{"FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0", "FENCELOCK_DATA=" + data}, "serve").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != cli.ExitFailed || !strings.Contains(string(out), data+" is in use by another process") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestStartsThatFail(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	text := filepath.Join(t.TempDir(), "no.db")
	if err := os.WriteFile(text, bytes.Repeat([]byte("this is no database. "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		env  []string
		args []string
		code int
		says string
	}{
		{"bad value", []string{"FENCELOCK_MAX_TTL=never"}, []string{"serve"}, cli.ExitUsage, `FENCELOCK_MAX_TTL="never"`},
		{"public address", []string{"FENCELOCK_LISTEN=0.0.0.0:0"}, []string{"serve"}, cli.ExitUsage, "FENCELOCK_INSECURE=true"},
		{"unknown flag", nil, []string{"serve", "--port=1"}, cli.ExitUsage, "fencelock serve has no flag --port"},
		{"unknown argument", nil, []string{"serve", "now"}, cli.ExitUsage, "fencelock serve takes no arguments"},
		{"unknown command", nil, []string{"dance"}, cli.ExitUsage, `fencelock has no command "dance"`},
		{"busy address", []string{"FENCELOCK_LISTEN=" + busy.Addr().String()}, []string{"serve"}, cli.ExitFailed, "FENCELOCK_LISTEN=" + busy.Addr().String()},
		{"not our file", []string{"FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_DATA=" + text}, []string{"serve"}, cli.ExitFailed, text},
		{"no such folder", []string{"FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_DATA=" + text + "/x/y"}, []string{"serve"}, cli.ExitFailed, "FENCELOCK_DATA"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := command(t, c.env, c.args...).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != c.code || !strings.Contains(string(out), c.says) {
				t.Errorf("%v, want code %d and %q: %s", err, c.code, c.says, out)
			}
		})
	}
}

// TestDrain stops a server while one request waits in the queue and another is under way. The first is told to use
// another server, the second gets its response.
func TestDrain(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.acquire(`{"resource":"a"}`)
	type outcome struct {
		status int
		body   wire.Problem
		err    error
	}
	waiting := make(chan outcome, 1)
	go func() {
		var o outcome
		resp, err := p.try(t.Context(), &o.body, "POST", "/locks", `{"resource":"a","wait_ms":600000}`)
		if o.err = err; err == nil {
			o.status = resp.StatusCode
		}
		waiting <- o
	}()
	p.until("the request waits in the queue", func() bool {
		var lock wire.Lock
		p.ask(&lock, "GET", "/locks/a", "")
		return lock.Waiters == 1
	})
	// A request whose body is not there yet is under way.
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	body := `{"resource":"b"}`
	if _, err := fmt.Fprintf(conn, "POST /locks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(body)); err != nil {
		t.Fatal(err)
	}
	answer := bufio.NewReader(conn)
	if line, err := answer.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("%q, %v", line, err)
	}
	_, _ = answer.ReadString('\n')

	begun := time.Now()
	p.Signal(syscall.SIGTERM)
	o := <-waiting
	if o.err != nil || o.status != http.StatusServiceUnavailable || o.body.Type != "/problems/server-stopping" {
		t.Errorf("the waiting request got %+v", o)
	}
	p.until("no new connection is taken", func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	if _, err := io.WriteString(conn, body); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(answer, nil)
	if err != nil || resp.StatusCode != http.StatusCreated {
		t.Errorf("the request under way got %v, %v", resp, err)
	}
	if code := p.exit(); code != 0 || time.Since(begun) > 15*time.Second {
		t.Errorf("exit code %d after %s", code, time.Since(begun))
	}
}

// TestSecondSignalEndsAtOnce: the drain waits for a body that never comes, and a second signal ends the server.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := start(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "POST /locks HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	p.Signal(syscall.SIGTERM)
	p.until("the server drains", func() bool {
		return strings.Contains(p.Logs(), "stopping")
	})
	p.Signal(syscall.SIGINT)
	if code := p.exit(); code == 0 || time.Since(begun) > 5*time.Second {
		t.Errorf("exit code %d after %s, want a killed process at once", code, time.Since(begun))
	}
}

// TestKilledServerLosesNoAnsweredWrite kills the server again and again in the middle of guarded writes. Every write
// that got a response must be there afterwards, the file must open, and the tokens must continue rising.
func TestKilledServerLosesNoAnsweredWrite(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "locks.db")
	var lastToken int64
	for round := range 6 {
		p := start(t, "FENCELOCK_DATA="+data)
		resource := fmt.Sprintf("round/%d", round)
		var previous wire.Lock
		p.wants(p.ask(&previous, "GET", "/locks/shared", ""), http.StatusOK)
		if round > 0 && (!previous.Held || previous.FencingToken != lastToken) {
			t.Fatalf("round %d: the lock that was granted before the kill is %+v", round, previous)
		}
		p.ask(nil, "POST", "/breaks", breakAny("shared"))
		shared := p.acquire(`{"resource":"shared","ttl_ms":60000}`)
		if shared.FencingToken <= lastToken {
			t.Fatalf("round %d: token %d after %d", round, shared.FencingToken, lastToken)
		}
		lastToken = shared.FencingToken

		lease := p.acquire(`{"resource":"` + resource + `","ttl_ms":60000}`)
		token := "Fencing-Token: " + strconv.FormatInt(lease.FencingToken, 10)
		answered := make(chan int)
		go func() { // writes 1, 2, 3 … until the server is gone
			defer close(answered)
			for n := 1; ; n++ {
				resp, err := p.try(t.Context(), nil, "PUT", "/guarded/"+resource, strconv.Itoa(n), token)
				if err != nil || resp.StatusCode != http.StatusOK {
					return
				}
				answered <- n
			}
		}()
		last := 0
		for n := range answered {
			if last = n; n == 20+37*round {
				go p.Kill()
			}
		}
		p.exit()

		p = start(t, "FENCELOCK_DATA="+data)
		var record wire.Record
		p.wants(p.ask(&record, "GET", "/guarded/"+resource, ""), http.StatusOK)
		value, err := strconv.Atoi(string(record.Value))
		if err != nil || value < last || value > last+1 || record.Version != int64(value) {
			t.Fatalf("round %d: %d writes were answered, the record says %+v", round, last, record)
		}
		p.Kill()
	}
}

func TestCommandsOnARunningServer(t *testing.T) {
	t.Parallel()
	p := start(t)
	listen := "FENCELOCK_LISTEN=" + strings.TrimPrefix(p.url, "http://")
	run := func(code int, says string, env string, args ...string) {
		t.Helper()
		out, err := command(t, []string{env}, args...).CombinedOutput()
		got := 0
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			got = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if got != code || !strings.Contains(string(out), says) {
			t.Errorf("%v: code %d, want %d and %q: %s", args, got, code, says, out)
		}
	}
	run(0, "", listen, "healthcheck")
	run(0, "", listen, "healthcheck", "--live")
	run(0, "", "A=b", "healthcheck", "--url", p.url+"/")
	run(0, "embedded", listen, "nodes")
	run(0, "1 of 1 vote, 1 are a quorum", listen, "nodes")
	run(0, `"state": "voting"`, listen, "nodes", "-o", "json")
	run(cli.ExitUsage, "must be table or json", listen, "nodes", "-o", "yaml")
	run(cli.ExitUsage, "has no fixed port", "FENCELOCK_LISTEN=127.0.0.1:0", "healthcheck")
	run(cli.ExitUsage, "404", "A=b", "nodes", "--url", "http://"+p.admin)
	run(0, "fencelock ", "A=b", "version")
	run(0, "Servers:\n", "A=b")
	p.Kill()
	run(cli.ExitFailed, "refuses connections", listen, "healthcheck")
}
