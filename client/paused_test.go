//go:build unix

package client_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/client"
)

// varPausedURL makes this test's program the worker that TestErrAfterAPause stops.
const varPausedURL = "FENCELOCK_TEST_PAUSED_URL"

// A process is stopped until its lease has expired. When it continues, its first call of ctx.Err() shows that.
func TestErrAfterAPause(t *testing.T) {
	t.Parallel()
	const ttl, margin = 4 * time.Second, time.Second
	if url := os.Getenv(varPausedURL); url != "" {
		looks(url, margin)
		return
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		_ = json.NewEncoder(w).Encode(lease(ttl))
	}))
	defer server.Close()
	worker := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestErrAfterAPause$")
	worker.Env = append(os.Environ(), varPausedURL+"="+server.URL, "GOMAXPROCS=1")
	out, err := worker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, want := range []string{"working", "over"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("the worker says %q, want %q", lines.Text(), want)
		}
		if want == "working" {
			pause(t, worker.Process, ttl)
		}
	}
	if err := worker.Wait(); err != nil {
		t.Error(err)
	}
}

func pause(t *testing.T, p *os.Process, d time.Duration) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(d) // it is what the process misses
	if err := p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// looks reads the validity and the context again and again without a pause, so that timers run only if the runtime
// interrupts it. It reports whether the two ever disagree.
func looks(url string, margin time.Duration) {
	c, err := client.New([]string{url})
	if err != nil {
		panic(err)
	}
	_ = c.Do(context.Background(), "r", func(ctx context.Context, l *client.Lease) error {
		fmt.Println("working")
		for {
			left := l.Validity()
			switch over := ctx.Err() != nil; {
			case left <= margin && over:
				fmt.Println("over")
				return context.Cause(ctx)
			case left <= margin:
				fmt.Printf("%s of validity are left, and the work may continue\n", left)
				return nil
			}
		}
	}, client.Margin(margin))
}
