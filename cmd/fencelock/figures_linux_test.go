package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// figure returns the number in a page below docs that the pattern's group matches. The page must contain it exactly
// once.
func figure(t *testing.T, page, pattern string) float64 {
	t.Helper()
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(operatorPage(t, page).text, -1)
	if len(found) != 1 {
		t.Fatalf("%s has %q %d times", page, pattern, len(found))
	}
	n, err := strconv.ParseFloat(strings.ReplaceAll(found[0][1], ",", ""), 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// about compares a measurement with a page's figure. They may differ by a fifth.
func about(t *testing.T, what string, measured, said float64) {
	t.Helper()
	t.Logf("%s: %.0f measured, the page says %.0f", what, measured, said)
	if measured > 1.2*said || measured < said/1.2 {
		t.Errorf("%s: %.0f measured, the page says %.0f", what, measured, said)
	}
}

// The page's figures are right about the memory that a lease takes on a Redis, with and without a key, and about what
// stays when the lease has ended.
func TestBytesOfALease(t *testing.T) {
	testenv.Long(t, "a lease that takes more memory of a node than the page says")
	t.Parallel()
	const scale = "explanation/scale.md"
	for name, c := range map[string]struct {
		key  string
		said float64
	}{
		"keyed":       {"key-of-%d-0123456789", figure(t, scale, `a lease in Redis \| (\d+) bytes on each node`)},
		"without key": {"", figure(t, scale, "\\((\\d+) without an `Idempotency-Key`\\)")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := testenv.StartRedis(t)
			p := start(t, redisAddrs([]*testenv.Redis{node}), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=3s", "FENCELOCK_MAX_TTL=1h")
			empty := memoryOf(t, node)
			const leases, most = 25_600, 128 // operations of a batch
			var held []wire.BatchOperation
			for at := 0; at < leases; at += most {
				var batch wire.Batch
				for i := range most {
					o := wire.BatchOperation{Operation: wire.OperationAcquire, Body: json.RawMessage(fmt.Sprintf(`{"resource":%q,"ttl_ms":3600000}`, idleResource(at+i)))}
					if c.key != "" {
						o.IdempotencyKey = fmt.Sprintf(c.key, at+i)
					}
					batch.Operations = append(batch.Operations, o)
				}
				for _, r := range p.batch(batch, http.StatusCreated) {
					var lease wire.Lease
					if err := json.Unmarshal(r.Body, &lease); err != nil {
						t.Fatal(err)
					}
					held = append(held, wire.BatchOperation{Operation: wire.OperationRelease, LeaseID: lease.LeaseID})
				}
			}
			about(t, "bytes of a lease", (memoryOf(t, node)-empty)/leases, c.said)
			for at := 0; at < leases; at += most {
				p.batch(wire.Batch{Operations: held[at : at+most]}, http.StatusNoContent)
			}
			if c.key == "" { // the tables of a Redis with more keys stay large
				about(t, "bytes that stay", (memoryOf(t, node)-empty)/leases, figure(t, scale, `of which (\d+) stay`))
			}
		})
	}
}

// memoryOf returns the memory that a Redis has allocated, in bytes.
func memoryOf(t *testing.T, node *testenv.Redis) float64 {
	t.Helper()
	info, err := node.Client().Info(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	used, err := strconv.ParseFloat(redisnode.ParseInfo(info)["used_memory"], 64)
	if err != nil {
		t.Fatal(err)
	}
	return used
}

// When the service freezes, a command under elect gets SIGTERM as long before the end of its lease as the page says:
// three tenths of the TTL.
func TestSignalUnderElect(t *testing.T) {
	testenv.Long(t, "a leader that gets its signal earlier, or later, than the page says")
	t.Parallel()
	machine := testenv.MeasureLateness(t)
	const ttl = 10 * time.Second
	before := time.Duration(figure(t, "how-to/elect.md", `: (\d+) s of 10 by default`)) * time.Second
	p := start(t, "FENCELOCK_MAX_TTL=60s")
	asked := time.Now()
	cmd, out := p.background(nil, "elect", "--ttl", ttl.String(), "scheduler", "--", "sh", "-c", `trap 'echo told; exit 0' TERM; echo here; while :; do sleep 0.02; done`)
	leads := time.Now()
	p.Freeze()
	defer func() { _ = cmd.Process.Kill() }()
	testenv.Eventually(t, patience, func() error {
		if !strings.Contains(out.String(), "told") {
			return fmt.Errorf("no signal: %s", out.String())
		}
		return nil
	})
	told := time.Now()
	t.Logf("SIGTERM %s to %s after the grant", told.Sub(leads), told.Sub(asked))
	const drift = ttl / 20 // of clocks, which the lease allows for
	if early := told.Sub(asked); early < ttl-before-drift {
		t.Errorf("SIGTERM came %s after the request; the page says %s before the end of %s", early, before, ttl)
	}
	if late := told.Sub(leads); late > ttl-before+drift+3*machine.Longest() && leads.Sub(asked) < ttl/3 { // before the first extension
		t.Errorf("SIGTERM came %s after the grant; the page says %s before the end of %s", late, before, ttl)
	}
}

// The command history shows no more entries than a server keeps, as its --help says.
func TestHistoryShowsWhatIsKept(t *testing.T) {
	t.Parallel()
	p := start(t)
	const kept = 100
	for i := range kept + 1 {
		p.wants(p.ask(nil, "POST", "/guarded/r", "", fmt.Sprint("Fencing-Token: ", i+1)), http.StatusOK)
	}
	var all []json.RawMessage
	got := p.tool("", nil, "history", "r", "-o", "json")
	if err := json.Unmarshal([]byte(got.out), &all); err != nil || len(all) != kept {
		t.Errorf("%d attempts, %v: %s", len(all), err, got.errOut)
	}
	p.tool("", nil, "history", "r", "--limit", strconv.Itoa(kept+1)).wants(t, "more than are kept", 2, "", "--limit is 101: use 1 to 100")
	p.tool("", nil, "history", "--help").wants(t, "help", 0, "1 to 100: a server keeps the last 100", "")
}
