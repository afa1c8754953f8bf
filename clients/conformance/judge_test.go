package conformance

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// A client that lost leases has an excuse only if it was kept from a processor for half of their TTL.
func TestOnlyAStarvedClientLosesLeasesInABurst(t *testing.T) {
	lost := step{result: result{Result: "burst", Done: 1000, Kept: 0}}
	for _, c := range []struct {
		starved time.Duration
		excused bool
	}{{0, false}, {2400 * time.Millisecond, false}, {2600 * time.Millisecond, true}} {
		r := run{scenario: bursts[0], late: usualLateness + c.starved, starved: c.starved, steps: []step{lost}}
		if err := resultsMatch(r); (err == nil) != c.excused {
			t.Errorf("starved for %s: %v", c.starved, err)
		}
	}
}

// Only one kind of extend may be read shortly after its release: one that the client gave up, on a
// connection of its own. It then gets no response or a 404.
func TestExtendReadAfterRelease(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		outcome, conn string
		after, takes  time.Duration
		wrong         bool
	}{
		"given up before":        {outcome: "cut", conn: "a", after: 5 * ms},
		"gone before":            {outcome: "gone", conn: "a", after: 5 * ms},
		"answered":               {outcome: "404", conn: "a", after: 5 * ms},
		"answered long after":    {outcome: "404", conn: "a", after: 60 * ms, wrong: true},
		"extended":               {outcome: "200", conn: "a", after: 5 * ms, wrong: true},
		"on the same one":        {outcome: "cut", conn: "b", after: 5 * ms, wrong: true},
		"long after":             {outcome: "cut", conn: "a", after: 60 * ms, wrong: true},
		"under way long after":   {outcome: "gone", conn: "a", after: 5 * ms, takes: 60 * ms, wrong: true},
		"answered before":        {outcome: "200", conn: "b", after: -5 * ms},
		"under way, sent before": {outcome: "200", conn: "a", after: -5 * ms, takes: 80 * ms, wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			at := now.Add(c.after)
			r := run{late: usualLateness, requests: []*request{
				{call: release, lease: "l", conn: "b", outcome: "204", at: now, ended: now},
				{call: extend, lease: "l", conn: c.conn, outcome: c.outcome, at: at, ended: at.Add(c.takes)},
			}}
			if c.after < 0 {
				r.requests[0], r.requests[1] = r.requests[1], r.requests[0]
			}
			if err := keepAliveStopped(r); (err != nil) != c.wrong {
				t.Errorf("got %v, want wrong: %t", err, c.wrong)
			}
		})
	}
}

// A request that was given up at the end of an order may be read a moment into the next one.
func TestKeyReadInTheNextOrder(t *testing.T) {
	const ms = time.Millisecond
	for after, wrong := range map[time.Duration]bool{5 * ms: false, 60 * ms: true} {
		now := time.Now()
		r := run{late: usualLateness, steps: []step{{sent: now.Add(-time.Second)}, {sent: now}}, requests: []*request{
			{call: acquire, key: "k", step: 0, at: now.Add(-time.Second)},
			{call: acquire, key: "k", step: 1, at: now.Add(after)},
		}}
		if err := oneKey(r); (err != nil) != wrong {
			t.Errorf("%s into it: got %v, want wrong: %t", after, err, wrong)
		}
	}
}

// A request that its client breaks off while sending it does not reach the service.
func TestHalfARequestIsNone(t *testing.T) {
	v := startService(t, scenario{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(v.urls[0], "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(conn, "POST /leases/current/extend HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{")
	if err := errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(v.urls[0] + "/healthz") //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	v.stop()
	for _, q := range v.requests {
		if q.call != probe {
			t.Errorf("it is noted: %s %+v", q, q)
		}
	}
}

// If more processes are busy than there are processors, one of them waits, and the wait is counted.
func TestWaitedForAProcessor(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("NOT RUN: only Linux counts for how long a thread waits for a processor")
	}
	var busy []int
	for range runtime.NumCPU() + 1 {
		c := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Wait() }) // it was killed with the context
		busy = append(busy, c.Process.Pid)
	}
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		var total time.Duration
		for _, pid := range busy {
			waiting, _ := waited(pid, nil)
			total += waiting
		}
		if total > usualLateness {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d busy processes waited for %s", len(busy), total)
		}
	}
}
