package main

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// TestWaitersWithoutQuorumAreSeen: while requests wait, a majority of their nodes stops. The metric and its alert
// show that before any of the requests ends.
func TestWaitersWithoutQuorumAreSeen(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3)
	p := start(t, redisAddrs(nodes), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=1s")
	held := p.acquire(`{"resource":"r","ttl_ms":60000}`)
	turns := lineUp(t, []*process{p}, "r", 3)
	metric := regexp.MustCompile(`\nfencelock_waiters_without_quorum\{set="1"\} (\d+)\n`)
	count := func() string {
		if found := metric.FindStringSubmatch(p.scrape()); found != nil {
			return found[1]
		}
		return "none"
	}
	before := count()
	if before != "0" {
		t.Errorf("%s requests wait without a quorum before anything happened", before)
	}

	nodes[0].Freeze()
	nodes[1].Freeze()
	p.until("the requests are counted while two nodes hang", func() bool { return count() == "3" })
	nodes[0].Thaw()
	nodes[1].Thaw()
	p.until("they are not once the nodes answer", func() bool { return count() == "0" })
	p.release(held)
	next := p.granted(turns[0], held)

	nodes[1].Kill()
	nodes[2].Kill()
	after := ""
	p.until("the others are counted when two nodes are dead", func() bool { after = count(); return after == "2" })
	select {
	case o := <-turns[1]:
		t.Errorf("it got an answer: %+v after token %d", o, next.FencingToken)
	default:
	}
	testAlerts(t, fmt.Sprintf(`
  - interval: 15s
    input_series:
      - {series: 'fencelock_waiters{instance="a", set="1"}', values: '2x12'}
      - {series: 'fencelock_waiters_without_quorum{instance="a", set="1"}', values: '%[1]sx4 %[2]sx8'}
    alert_rule_test:
      - {eval_time: 1m, alertname: FencelockWaitersWithoutQuorum}
      - eval_time: 2m
        alertname: FencelockWaitersWithoutQuorum
        exp_alerts:
          - exp_labels: {severity: critical, set: "1"}
            exp_annotations:
              summary: "Node set 1: requests wait without a quorum"
              description: "2 requests wait and cannot be granted, because too few nodes vote or reply."
              runbook_url: docs/how-to/runbook.md#fencelockwaiterswithoutquorum
`, before, after))
}
