package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// brokenInvariants is the metric of an invariant, as a scrape shows it.
func brokenInvariants(name string, count int) string {
	return fmt.Sprintf("fencelock_invariant_violations_total{invariant=%q} %d\n", name, count)
}

// setBack sets a node's data back by hand: the resource's counter and the high-water mark.
func setBack(t *testing.T, n *testenv.Redis, resource string) {
	t.Helper()
	client := n.Client()
	if changed, err := client.SetXX(t.Context(), "cl:"+resource, 1, 0).Result(); err != nil || !changed {
		t.Fatalf("the counter of %s: %t, %v", resource, changed, err)
	}
	if err := client.HSet(t.Context(), "fencelock", "high_water", 1).Err(); err != nil {
		t.Fatal(err)
	}
}

// A change of a node's data by hand breaks an invariant: the metric counts it, and the log says so without a secret.
// Nothing else breaks an invariant.
func TestABrokenInvariantIsCounted(t *testing.T) {
	t.Parallel()
	n := testenv.StartRedis(t)
	p := start(t, redisAddrs([]*testenv.Redis{n}), "FENCELOCK_BOOTSTRAP=new")
	first := p.acquire(`{"resource":"a"}`)
	p.release(first)
	p.release(p.acquire(`{"resource":"a"}`))
	for _, name := range []string{"token_order", "extend_order", "high_water", "queue_order", "batch_replies"} {
		if text := p.scrape(); !strings.Contains(text, brokenInvariants(name, 0)) {
			t.Errorf("%s is not 0:\n%s", name, text)
		}
	}
	setBack(t, n, "a")
	lease := p.acquire(`{"resource":"a"}`)
	if lease.FencingToken >= first.FencingToken {
		t.Fatalf("token %d after %d: nothing was set back", lease.FencingToken, first.FencingToken)
	}
	p.until("the metric counts both", func() bool {
		text := p.scrape()
		return strings.Contains(text, brokenInvariants("token_order", 1)) && strings.Contains(text, brokenInvariants("high_water", 1))
	})
	for _, want := range []string{`"level":"ERROR"`, `"invariant":"token_order","resource":"a"`, fmt.Sprintf(`"token":%d`, lease.FencingToken), `"invariant":"high_water"`} {
		p.until("the log has "+want, func() bool { return strings.Contains(p.Logs(), want) })
	}
	noSecrets(t, "the log", p.Logs(), []string{lease.LeaseID, first.LeaseID})
}
