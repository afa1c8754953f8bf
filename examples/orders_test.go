package examples_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
)

// The backends take a lock per order and write guarded: of requests that come at
// the same time none is lost, and one that has fallen behind writes nothing.
func TestOrderBackends(t *testing.T) {
	testenv.NeedsServer(t)
	locks := serve(t)
	for name, find := range map[string]func(*testing.T) (command, env []string){
		"go": func(t *testing.T) ([]string, []string) {
			t.Helper()
			return []string{build(t, "./orders-go")}, nil
		},
		"python": func(t *testing.T) ([]string, []string) {
			t.Helper()
			return []string{findPython(t), "orders-python/app.py"}, nil
		},
		"node": func(t *testing.T) ([]string, []string) {
			t.Helper()
			return []string{"node", "orders-node/app.js"}, []string{"NODE_PATH=" + findNodePg(t)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			command, env := find(t)
			url := prepare(t, "orders.sql")
			line := start(t, append(env, "DATABASE_URL="+url, "FENCELOCK_URL="+locks, "PORT=0"), command...)
			backend, ok := strings.CutPrefix(line, "listening on ")
			if !ok {
				t.Fatalf("the backend said %q", line)
			}
			chargesAtOnce(t, backend)
			refusesTheStale(t, backend, url)
		})
	}
}

// chargesAtOnce sends requests for one order at the same time.
func chargesAtOnce(t *testing.T, backend string) {
	t.Helper()
	const requests = 12
	var all sync.WaitGroup
	said := make([]string, requests)
	for i := range said {
		all.Go(func() { said[i] = post(backend + "/orders/1/charge") })
	}
	all.Wait()
	seen := map[string]bool{}
	for _, answer := range said {
		seen[strings.Join(strings.Fields(answer), "")] = true
	}
	for i := 1; i <= requests; i++ {
		if want := fmt.Sprintf(`200{"charges":%d}`, i); !seen[want] {
			t.Errorf("nobody was told %s; they were told %q", want, said)
		}
	}
}

// refusesTheStale lets somebody with a larger token have the order already.
func refusesTheStale(t *testing.T, backend, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), "SELECT fencing.claim('orders/2', $1)", int64(fencing.MaxToken)); err != nil {
		t.Fatal(err)
	}
	if said := post(backend + "/orders/2/charge"); !strings.HasPrefix(said, "409 ") {
		t.Errorf("a stale write was answered with %q", said)
	}
	var charges int
	if err := conn.QueryRow(t.Context(), "SELECT charges FROM orders WHERE id = 2").Scan(&charges); err != nil || charges != 0 {
		t.Errorf("the order has %d charges after a stale write (%v)", charges, err)
	}
}

// post returns status and body.
func post(url string) string {
	resp, err := (&http.Client{Timeout: time.Minute}).Post(url, "application/json", http.NoBody)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, body)
}

func build(t *testing.T, pkg string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("go", "build", "-o", bin, pkg).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return bin
}

// serve runs the lock service on its embedded default.
func serve(t *testing.T) (url string) {
	t.Helper()
	env := []string{
		"FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0", "FENCELOCK_LOG_FORMAT=json",
		"FENCELOCK_DATA=" + filepath.Join(t.TempDir(), "fencelock.db"),
	}
	line := start(t, env, build(t, "../cmd/fencelock"), "serve")
	var first struct {
		Addr string `json:"addr"`
	}
	if err := json.Unmarshal([]byte(line), &first); err != nil || first.Addr == "" {
		t.Fatalf("the service's first line names no address: %s", line)
	}
	return "http://" + first.Addr
}

// start runs a program until the test ends, and returns the first line that it says.
func start(t *testing.T, env []string, command ...string) string {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	lines := bufio.NewReader(out)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if rest, _ := io.ReadAll(lines); t.Failed() {
			t.Logf("%s said:\n%s", command[0], rest)
		}
		_ = out.Close()
	})
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("%s said %q and ended: %v", command[0], line, err)
	}
	return strings.TrimSpace(line)
}
