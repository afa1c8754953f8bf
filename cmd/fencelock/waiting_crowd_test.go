//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// crowdMostCPU is the highest processor time of a server whose waiters only wait.
const crowdMostCPU = 0.05 // of one core

// TestCrowd lets a thousand requests wait at one server over five real Redis nodes. The first is granted the lease,
// and all that hang up leave the queue.
func TestCrowd(t *testing.T) {
	t.Parallel()
	wait(t, 1000, false)
}

// TestSoakCrowd lets ten thousand requests wait, and measures their cost.
func TestSoakCrowd(t *testing.T) {
	testenv.Soak(t, "what ten thousand waiters cost")
	wait(t, crowdSize(t), true)
}

func wait(t *testing.T, crowd int, measured bool) {
	t.Helper()
	nodes := testenv.StartRedisN(t, 5)
	p := start(t, redisAddrs(nodes), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_TIMEOUT=5s")
	empty := p.resident()
	holder := p.acquire(`{"resource":"hot","ttl_ms":60000}`)

	begun := time.Now()
	conns := make([]net.Conn, crowd)
	for i := range conns {
		conns[i] = p.waitRaw("hot", fmt.Sprint("waiter-", i))
		if i == 0 {
			p.awaitWaiting("hot", 1) // later ones are behind it
		}
	}
	p.awaitWaiting("hot", crowd)
	t.Logf("%d requests stood in the queue after %s", crowd, time.Since(begun).Round(time.Millisecond))

	if measured {
		p.costs(t, crowd, empty)
	}
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+holder.LeaseID), http.StatusNoContent)
	first := readGrant(t, conns[0])
	if first.FencingToken <= holder.FencingToken {
		t.Errorf("token %d after %d", first.FencingToken, holder.FencingToken)
	}
	begun = time.Now()
	for _, c := range conns {
		_ = c.Close()
	}
	p.awaitWaiting("hot", 0)
	t.Logf("all of them had left the queue after %s", time.Since(begun).Round(time.Millisecond))
}

// crowdSize is ten thousand, or fewer if this machine does not let a process open so many files.
func crowdSize(t *testing.T) int {
	t.Helper()
	const crowd, spare = 10_000, 200
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = limit.Max // Go does it by itself, here and in the server
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Max < crowd+spare {
		t.Logf("this machine lets a process open %d files: fewer requests wait", limit.Max)
		return int(limit.Max) - spare
	}
	return crowd
}

// costs measures the server while nothing happens. Other programs do not add to the server's processor time, but the
// server may still have work to do for requests that have just come. So it returns the least of a few measurements.
func (p *process) costs(t *testing.T, crowd int, empty int64) {
	t.Helper()
	const looks, window = 4, 3 * time.Second
	const scale, off = "explanation/scale.md", 1.2
	mostEmpty := off * 1e6 * (figure(t, scale, `a server \| (\d+) MB`) + 5*figure(t, scale, `and (0\.\d) MB for each node`))
	mostEach := off * 1e3 * figure(t, scale, `a waiting request \| (\d+) kB`)
	if float64(empty) > mostEmpty {
		t.Errorf("a server without waiters has %d bytes, more than %.0f", empty, mostEmpty)
	}
	for look := 1; ; look++ {
		spent, begun := p.cpu(), time.Now()
		<-time.After(window) // what is measured is that nothing happens
		share := (p.cpu() - spent).Seconds() / time.Since(begun).Seconds()
		each := float64(p.resident()-empty) / float64(crowd)
		t.Logf("%d waiters cost %.0f bytes each (the server without them %d) and %.1f %% of one core", crowd, each, empty, 100*share)
		switch {
		case each < mostEach && share < crowdMostCPU:
			return
		case look == looks:
			t.Errorf("more than %.0f bytes or %.0f %%", mostEach, 100*crowdMostCPU)
			return
		}
	}
}

// resident returns the memory of the server in bytes.
func (p *process) resident() int64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		p.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kilobytes, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return kilobytes << 10
}

// cpu returns the processor time that the server has used.
func (p *process) cpu() time.Duration {
	p.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		p.t.Fatal(err)
	}
	const user, system, hertz = 11, 12, 100 // fields after the name; USER_HZ
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	ticks := 0
	for _, field := range fields[user : system+1] {
		n, err := strconv.Atoi(field)
		if err != nil {
			p.t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / hertz)
}

func readGrant(t *testing.T, conn net.Conn) (lease wire.Lease) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := readJSON(resp, &lease); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("status %d", resp.StatusCode)
	}
	return lease
}
