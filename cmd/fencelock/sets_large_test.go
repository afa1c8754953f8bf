package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// TestSoakSetsChangeUnderManyLocks adds a set, grows one from three nodes to five, and replaces a machine. Each
// change has 100,000 locks of a minute, 50 callers that keep leases, and 20 callers that pass some on.
// docs/how-to/change-nodes.md has its figures.
func TestSoakSetsChangeUnderManyLocks(t *testing.T) {
	testenv.Soak(t, "what a change of nodes costs callers while there are 100,000 locks")
	machines := testenv.StartRedisN(t, 6)
	list := func(database int, of ...int) string {
		var nodes []string
		for _, i := range of {
			nodes = append(nodes, fmt.Sprintf("%s%d", strings.TrimSuffix(machines[i].URL(), "0"), database))
		}
		return strings.Join(nodes, ",")
	}
	for _, change := range []struct{ name, present, next string }{
		{"a set is added", list(0, 0, 1, 2), list(0, 0, 1, 2) + ";" + list(0, 3, 4, 5)},
		{"three nodes to five", list(1, 0, 1, 2), list(2, 0, 1, 2, 3, 4)},
		{"a machine is replaced", list(3, 0, 1, 2), list(4, 0, 1, 5)},
	} {
		t.Run(change.name, func(t *testing.T) {
			env := func(present, next string) []string {
				env := []string{"FENCELOCK_REDIS_ADDRS=" + present, "FENCELOCK_NODE_TIMEOUT=3s", "FENCELOCK_NODE_DOWN_AFTER=10s", "FENCELOCK_MAX_TTL=60s", "FENCELOCK_DEFAULT_TTL=60s"}
				if next != "" {
					env = append(env, "FENCELOCK_REDIS_NEXT_ADDRS="+next)
				}
				return env
			}
			changing := env(change.present, change.next)
			f := startChanging(t, 2, env(change.present, ""), changing)
			e, end := startExclusive(t, f.direct(), demand{kept: 50, passing: 20, resources: 4, ttl: time.Minute, refusals: true})
			command := printed(t, changing, "apply")
			ids := f.fill(100_000)
			plan := runSets(t, changing, append(command, "--dry-run")...)
			began := time.Now()
			applied := runSets(t, changing, command...)
			took := time.Since(began)
			applied.wants(t, "apply", 0, "the next node sets are in force", "")
			const sample = 1_000 // the youngest
			lost := f.extend(ids[len(ids)-sample:])
			end()
			for _, err := range e.wrong {
				t.Error(err)
			}
			if lost > 0 {
				t.Errorf("%d of %d leases are lost", lost, sample)
			}
			t.Logf("planned: %s; written: %s; it took %s with the start of the command; %d grants; %d acquires were refused, and a caller that passes leases on waited %s at most; %d of %d leases lost",
				regexp.MustCompile(`.* locks are copied.*`).FindString(plan.out), regexp.MustCompile(`writing.*`).FindString(applied.errOut), took.Round(time.Millisecond), e.grants, e.refused, e.longest.Round(time.Millisecond), lost, sample)
			t.Log(applied.out)
		})
	}
}

// batches sends operations, several batches at a time, and returns their results in order.
func (f *fleet) batches(operations []wire.BatchOperation) []wire.BatchResult {
	f.t.Helper()
	const most, inFlight = 128, 8
	results := make([]wire.BatchResult, len(operations))
	slots := make(chan struct{}, inFlight)
	var sending sync.WaitGroup
	for at := 0; at < len(operations); at += most {
		slots <- struct{}{}
		sending.Go(func() {
			defer func() { <-slots }()
			body, err := json.Marshal(wire.Batch{Operations: operations[at:min(at+most, len(operations))]})
			if err != nil {
				f.t.Error(err)
			}
			var got wire.BatchResults
			if _, err := f.servers[at/most%len(f.servers)].try(f.t.Context(), &got, "POST", "/locks/batch", string(body)); err != nil {
				f.t.Error(err)
			}
			copy(results[at:], got.Results)
		})
	}
	sending.Wait()
	return results
}

// fill acquires n locks of a minute, and returns the ids of their leases.
func (f *fleet) fill(locks int) (ids []string) {
	f.t.Helper()
	operations := make([]wire.BatchOperation, locks)
	for i := range operations {
		operations[i] = wire.BatchOperation{Operation: wire.OperationAcquire, Body: json.RawMessage(fmt.Sprintf(`{"resource":"many/%d","ttl_ms":60000}`, i))}
	}
	for i, r := range f.batches(operations) {
		var lease wire.Lease
		if err := json.Unmarshal(r.Body, &lease); err != nil || r.Status != http.StatusCreated {
			f.t.Fatalf("lock %d: %d %s", i, r.Status, r.Body)
		}
		ids = append(ids, lease.LeaseID)
	}
	return ids
}

// extend extends leases, and counts those that have ended.
func (f *fleet) extend(ids []string) (lost int) {
	f.t.Helper()
	operations := make([]wire.BatchOperation, len(ids))
	for i, id := range ids {
		operations[i] = wire.BatchOperation{Operation: wire.OperationExtend, LeaseID: id, Body: json.RawMessage(`{"ttl_ms":60000}`)}
	}
	for _, r := range f.batches(operations) {
		if r.Status != http.StatusOK {
			lost++
		}
	}
	return lost
}
