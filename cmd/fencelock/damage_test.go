package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
)

// usedFile returns the file of a server that was killed with locks, a queue and guarded records in it, and the tokens
// of the records and of the locks.
func usedFile(t *testing.T) (raw []byte, records, locks map[string]int64) {
	t.Helper()
	data := filepath.Join(t.TempDir(), "used.db")
	p := start(t, "FENCELOCK_DATA="+data)
	records, locks = map[string]int64{}, map[string]int64{}
	for i := range 40 {
		resource := fmt.Sprintf("resource/%d", i)
		lease := p.acquire(fmt.Sprintf(`{"resource":%q,"ttl_ms":3000,"metadata":{"text":%q}}`, resource, strings.Repeat("m", 300)))
		locks[resource] = lease.FencingToken
		if i%2 == 0 {
			p.wants(p.ask(nil, "PUT", "/guarded/"+resource, fmt.Sprintf(`{"n":%d}`, i), fmt.Sprintf("Fencing-Token: %d", lease.FencingToken)), http.StatusOK)
			records[resource] = lease.FencingToken
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.acquire(`{"resource":"queued","ttl_ms":60000}`)
	go func() { _, _ = p.try(ctx, nil, "POST", "/locks", `{"resource":"queued","wait_ms":60000}`) }()
	testenv.Eventually(t, 10*time.Second, func() error {
		var lock wire.Lock
		if p.ask(&lock, "GET", "/locks/queued", ""); lock.Waiters != 1 {
			return fmt.Errorf("%d clients wait", lock.Waiters)
		}
		return nil
	})
	p.Kill()
	raw, err := os.ReadFile(data)
	if err != nil {
		t.Fatal(err)
	}
	return raw, records, locks
}

// TestDamagedFile starts servers on damaged files. Each server either refuses its file and says what to do, or serves
// the records with higher tokens.
func TestDamagedFile(t *testing.T) {
	testenv.Long(t, "a damage of the embedded file that the program does not name")
	t.Parallel()
	damagedFiles(t, 4)
}

// TestSoakDamagedFile tries all of the damages that TestDamagedFile draws from.
func TestSoakDamagedFile(t *testing.T) {
	testenv.Soak(t, "a damage of the embedded file beside those that TestDamagedFile draws")
	damagedFiles(t, 1)
}

// damagedFiles tries one of every n damages.
func damagedFiles(t *testing.T, every int) {
	t.Helper()
	raw, records, locks := usedFile(t)
	random := rand.New(rand.NewPCG(1, 2))
	cases := map[string][]byte{}
	for _, size := range []int{0, 1, 4096, 8192, 20_000, len(raw) / 2, random.IntN(len(raw)), random.IntN(len(raw))} {
		cases[fmt.Sprintf("cut to %d bytes", size)] = raw[:size]
	}
	page := os.Getpagesize()
	seen := map[byte]int{}
	for at := 0; at < len(raw); at += page {
		kind := raw[at+8]
		if seen[kind]++; binary.NativeEndian.Uint64(raw[at:]) != uint64(at/page) || seen[kind] > 2 {
			continue
		}
		for _, field := range []int{0, 8, 10, 12, 20, 24, random.IntN(page), random.IntN(page), random.IntN(page)} {
			changed := bytes.Clone(raw)
			changed[at+field] ^= byte(1 << random.IntN(8))
			cases[fmt.Sprintf("page %d, byte %d", at/page, field)] = changed
		}
	}
	refused := 0
	names := slices.Sorted(maps.Keys(cases))
	for i, name := range names {
		if i%every != 0 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			data := filepath.Join(t.TempDir(), "damaged.db")
			if err := os.WriteFile(data, cases[name], 0o600); err != nil {
				t.Fatal(err)
			}
			if isRefused(t, data) {
				refused++
				return
			}
			p := start(t, "FENCELOCK_DATA="+data)
			for resource, token := range records {
				var record wire.Record
				p.wants(p.ask(&record, "GET", "/guarded/"+resource, ""), http.StatusOK)
				if record.HighestToken != token {
					t.Errorf("the record of %s has the mark %d, was %d", resource, record.HighestToken, token)
				}
			}
			for resource, token := range locks {
				if lease := p.acquire(fmt.Sprintf(`{"resource":%q,"ttl_ms":3000,"wait_ms":10000}`, resource)); lease.FencingToken <= token {
					t.Errorf("%s: token %d after %d", resource, lease.FencingToken, token)
				}
			}
		})
	}
	if refused < 20/every {
		t.Errorf("%d of %d damaged files were refused", refused, len(cases))
	}
}

// TestSoakEachWriteFails makes one of the server's first writes and syncs fail, another one in each run. The server
// ends and says why, without calling the file damaged. A server that is started again has every lease that was
// granted, and larger tokens.
func TestSoakEachWriteFails(t *testing.T) {
	testenv.Soak(t, "a write of the embedded file whose failure loses a lease")
	strace := testenv.Installed(t, "strace", "strace")
	for _, call := range []string{"pwrite64", "fdatasync"} {
		for n := 1; n <= 6; n++ {
			t.Run(fmt.Sprintf("%s %d", call, n), func(t *testing.T) { writeFails(t, strace, call, n) })
		}
	}
}

func writeFails(t *testing.T, strace, call string, n int) {
	t.Helper()
	data := filepath.Join(t.TempDir(), "locks.db")
	p := start(t, "FENCELOCK_DATA="+data)
	leases := []wire.Lease{p.acquire(`{"resource":"first","ttl_ms":60000}`)}
	inject(t, strace, p.PID(), fmt.Sprintf("inject=%s:error=EIO:when=%d", call, n))
	const most = 200 // the calls are counted for each thread
	for i := 0; ; i++ {
		var lease wire.Lease
		resp, err := p.try(t.Context(), &lease, "POST", "/locks", fmt.Sprintf(`{"resource":"r%d","ttl_ms":60000}`, i))
		if err != nil || resp.StatusCode != http.StatusCreated {
			break
		}
		if leases = append(leases, lease); i == most {
			t.Fatal("nothing failed")
		}
	}
	if code := p.exit(); code != cli.ExitFailed {
		t.Errorf("it ends with %d", code)
	}
	last := p.Logs()
	if !strings.Contains(last, "the disk did not read or write "+data) || !strings.Contains(last, "start the server again") || strings.Contains(last, "Move it away") {
		t.Errorf("it says %s", last)
	}
	p = start(t, "FENCELOCK_DATA="+data)
	for _, lease := range leases {
		p.wants(p.ask(nil, "GET", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID), http.StatusOK)
	}
	p.breaks("first")
	if again := p.acquire(`{"resource":"first"}`); again.FencingToken <= leases[0].FencingToken {
		t.Errorf("token %d after %d", again.FencingToken, leases[0].FencingToken)
	}
}

// inject makes strace inject a fault into system calls of a process, until the process ends.
func inject(t *testing.T, strace string, pid int, what string) {
	t.Helper()
	call, _, _ := strings.Cut(strings.TrimPrefix(what, "inject="), ":")
	cmd := exec.Command(strace, "-f", "-o", os.DevNull, "-e", "trace="+call, "-e", what, "-p", strconv.Itoa(pid))
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(stderr).ReadString('\n'); !strings.Contains(line, "attached") {
		t.Fatalf("strace says %q (%v)", line, err)
	}
}

// isRefused starts a server on a damaged file, with an address on which it cannot listen. So it ends with a message
// whether it accepts the file or not.
func isRefused(t *testing.T, data string) bool {
	t.Helper()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	out, err := command(t, []string{"FENCELOCK_DATA=" + data, "FENCELOCK_LISTEN=" + busy.Addr().String()}, "serve").CombinedOutput()
	exit, isExit := errors.AsType[*exec.ExitError](err)
	if !isExit || exit.ExitCode() != cli.ExitFailed {
		t.Fatalf("it ends with %v: %s", err, out)
	}
	if strings.Contains(string(out), "another program uses the port") {
		return false
	}
	wantAdvice(t, data, string(out))
	return true
}

func wantAdvice(t *testing.T, data, text string) {
	t.Helper()
	for _, part := range []string{data + " is damaged", "Move it away", "FENCELOCK_DATA"} {
		if !strings.Contains(text, part) {
			t.Errorf("it does not say %q: %s", part, text)
		}
	}
	if strings.Contains(text, "goroutine ") {
		t.Errorf("it panics: %s", text)
	}
}

// TestFileCutWhileServing cuts the file of a running server: the server ends with a message, and grants nothing more.
func TestFileCutWhileServing(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{0, 4096, 8192} {
		t.Run(fmt.Sprintf("to %d bytes", size), func(t *testing.T) {
			data := filepath.Join(t.TempDir(), "cut.db")
			p := start(t, "FENCELOCK_DATA="+data)
			p.acquire(`{"resource":"r","ttl_ms":60000}`)
			if err := os.Truncate(data, size); err != nil {
				t.Fatal(err)
			}
			if resp, err := p.try(t.Context(), nil, "POST", "/locks", `{"resource":"other","ttl_ms":60000}`); err == nil && resp.StatusCode < 500 {
				t.Errorf("a lock is answered %d", resp.StatusCode)
			}
			if code := p.exit(); code != cli.ExitFailed {
				t.Errorf("it ends with %d", code)
			}
			wantAdvice(t, data, p.Logs())
		})
	}
}

// TestMadeUpTokenInTheGuard: a caller that may write one guarded record can claim it with any token. That locks out
// the holders of that record, but not the service, which starts above the guard's highest mark.
func TestMadeUpTokenInTheGuard(t *testing.T) {
	t.Parallel()
	for guard, extra := range map[string][]string{"file": nil, "Postgres": {"FENCELOCK_DATABASE_URL=" + testenv.Postgres(t).OwnerURL()}} {
		t.Run(guard, func(t *testing.T) {
			env := append(slices.Clone(extra), "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "node.db"))
			p := start(t, env...)
			before := p.acquire(`{"resource":"before"}`)
			p.wants(p.ask(nil, "PUT", "/guarded/victim", `1`, "Fencing-Token: "+fencing.MaxToken.String()), http.StatusOK)
			p.Kill()
			p = start(t, env...)
			after := p.acquire(`{"resource":"after"}`)
			if ahead := after.FencingToken - before.FencingToken; ahead < 0 || ahead > time.Minute.Microseconds() {
				t.Errorf("token %d after %d", after.FencingToken, before.FencingToken)
			}
		})
	}
}
