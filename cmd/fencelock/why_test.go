package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// Three holders of three resources form a deadlock. The API and the command name it as soon as the third one waits in
// the queue, and the command that it prints resolves it. Before the third one waits, there is a chain and no
// deadlock.
func TestWhy(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.tool("", nil, "why").wants(t, "why of nothing", 0, "no holder waits\n", "")
	p.tool("", nil, "why", "x").wants(t, "why of a free resource", 0, "x is free, and no holder has this label\n", "")
	for holder, resource := range map[string]string{"ann": "x", "bob": "y", "cid": "it's z"} {
		p.acquire(fmt.Sprintf(`{"resource":%q,"holder":%q,"ttl_ms":60000}`, resource, holder))
	}
	p.acquire(`{"resource":"bare","ttl_ms":60000}`)
	p.waits(t.Context(), "y", "ann", time.Minute)
	p.awaitWaiting("y", 1)
	p.waits(t.Context(), "it's z", "bob", time.Minute)
	p.awaitWaiting("it%27s%20z", 1)

	p.acquire(`{"resource":"jobs","slots":2,"holder":"dora","ttl_ms":60000}`)
	if jobs := p.tool("", nil, "why", "jobs"); !strings.Contains(jobs.out, " is held by dora under token ") || !strings.Contains(jobs.out, "\ndora waits for nothing\n") {
		t.Errorf("a resource with slots: %s", jobs.out)
	}

	chain := p.tool("", nil, "why", "x")
	chain.wants(t, "why x", 0, "\nann waits for y for ", "leases and waits without a label, which are in no chain: 1\n")
	for _, line := range []string{"x is held by ann under token ", "\nann holds x under token ", ", at place 1 in the queue; blocked by bob\n", "\nbob waits for it's z for ", "\ncid waits for nothing\n"} {
		if !strings.Contains(chain.out, line) {
			t.Errorf("%q is not in %s", line, chain.out)
		}
	}
	if strings.Contains(chain.out, "deadlock") {
		t.Errorf("a chain: %s", chain.out)
	}
	p.tool("", nil, "why", "ann", "-o", "json").wants(t, "why as JSON", 0, `"deadlocks": [],`, "")

	p.waits(t.Context(), "x", "cid", time.Minute)
	p.awaitWaiting("x", 1)
	b := p.blockedBy("ann") // the first read after the wait began
	if len(b.Deadlocks) != 1 {
		t.Fatalf("%+v", b)
	}
	if waits := b.Deadlocks[0].Waits; len(waits) != 3 || waits[0].Holder != "cid" || b.Deadlocks[0].Break.Resource != "it's z" {
		t.Errorf("%+v", b.Deadlocks[0])
	}
	named := p.tool("", nil, "why", "bob")
	named.wants(t, "why bob", 1, "\ndeadlock for ", "there is a deadlock")
	_, line, found := strings.Cut(named.out, "the wait of cid began last; to break its lease: fencelock ")
	if !found {
		t.Fatal(named.out)
	}
	line, _, _ = strings.Cut(line, "\n")
	pasted := exec.Command("sh", "-c", `"$0" `+strings.Replace(line, "break ", "break --yes ", 1), testenv.Program(t))
	pasted.Env = []string{"PATH=" + os.Getenv("PATH"), "FENCELOCK_URL=" + p.url}
	finish(t, pasted, "").wants(t, line, 0, "it's z is broken\n", "")
	p.until("the deadlock is resolved", func() bool {
		return p.tool("", nil, "why").code == 0
	})
}
