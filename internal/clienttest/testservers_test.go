package clienttest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencelocktest"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
)

// testServer is a service for the tests of applications.
type testServer struct {
	url   string
	order func(do, resource string)
}

// The service for the tests of applications in Go answers like the real one: the same calls of a client give
// the same. Those in the other languages start the real one.
func TestTestServers(t *testing.T) {
	t.Parallel()
	servers := map[string]func(*testing.T) testServer{
		"real": func(t *testing.T) testServer {
			t.Helper()
			return testServer{url: serve(t, newLocker(t)).URL}
		},
		"go": goTestServer,
	}
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			c, err := client.New([]string{server.url}, client.WithHolder("tester"))
			if err != nil {
				t.Fatal(err)
			}
			t.Run("locks", func(t *testing.T) { answersLikeTheService(t, c) })
			if server.order != nil {
				t.Run("control", func(t *testing.T) { obeys(t, c, server) })
				t.Run("records", func(t *testing.T) { keepsRecords(t, c) })
			}
		})
	}
}

func goTestServer(t *testing.T) testServer {
	t.Helper()
	server := fencelocktest.Start(t)
	others := map[string]*fencelocktest.Other{}
	return testServer{url: server.URL(), order: func(do, resource string) {
		switch do {
		case "end":
			server.End(resource)
		case "lose":
			server.LoseNextResponse()
		case "hold":
			others[resource] = server.Hold(resource)
		case "let":
			others[resource].Release()
		case "await":
			server.AwaitWaiters(resource, 1)
		}
	}}
}

func answersLikeTheService(t *testing.T, c *client.Client) {
	t.Helper()
	ctx := t.Context()
	first, err := c.TryAcquire(ctx, "a/1", client.Metadata(json.RawMessage(`{"n":1}`)))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.TryAcquire(ctx, "a/1")
	problem, _ := errors.AsType[*client.ProblemError](err)
	if problem == nil || problem.Kind() != "lock-held" || problem.Holder != "tester" || problem.FencingToken != first.Token() || problem.Resource != "a/1" {
		t.Errorf("a held lock gives %v", err)
	}
	if _, err := c.Acquire(ctx, "a/1", client.Wait(50*time.Millisecond)); !errors.Is(err, client.ErrHeld) {
		t.Errorf("a wait that ended gives %v", err)
	}
	lock, err := c.Inspect(ctx, "a/1")
	if err != nil || !lock.Held || lock.Token != first.Token() || lock.Holder != "tester" || string(lock.Metadata) != `{"n":1}` || lock.TTL <= 0 || lock.Remaining <= 0 {
		t.Errorf("it is shown as %+v, %v", lock, err)
	}
	found, err := c.Lease(ctx, first.ID())
	if err != nil || found.Token() != first.Token() || first.Extend(ctx) != nil {
		t.Errorf("its lease is %v, %v", found, err)
	}
	both, err := c.AcquireAll(ctx, []string{"a/3", "a/2"})
	if err != nil || len(both.Parts()) != 2 || both.Parts()[0].Resource != "a/2" {
		t.Fatalf("a lease of two is %v, %v", both, err)
	}
	if _, err := c.AcquireAll(ctx, []string{"b", "a/3"}, client.Wait(0)); !errors.Is(err, client.ErrHeld) {
		t.Errorf("a part that is held gives %v", err)
	}
	var listed []string
	for lock, err := range c.Locks(ctx, "a/") {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, lock.Resource)
	}
	if len(listed) != 3 {
		t.Errorf("%q are listed", listed)
	}
	one, err1 := c.TryAcquire(ctx, "jobs", client.Slots(2))
	two, err2 := c.TryAcquire(ctx, "jobs", client.Slots(2))
	if err1 != nil || err2 != nil || one.Slot()+two.Slot() != 3 || one.Resource() == two.Resource() {
		t.Errorf("the slots are %v and %v, %v, %v", one, two, err1, err2)
	}
	if _, err := c.TryAcquire(ctx, "jobs", client.Slots(2)); !errors.Is(err, client.ErrHeld) {
		t.Errorf("a third slot gives %v", err)
	}
	handsOver(t, c, first)
	err = c.Break(ctx, "a/2", both.Parts()[0].Token+1000)
	if problem, _ := errors.AsType[*client.ProblemError](err); problem == nil || problem.Kind() != "other-lease" {
		t.Errorf("a break of another lease gives %v", err)
	}
	if err := c.Break(ctx, "a/2", both.Parts()[0].Token); err != nil {
		t.Error(err)
	}
	if err := both.Extend(ctx); !errors.Is(err, client.ErrLeaseLost) {
		t.Errorf("an extend of a broken lease gives %v", err)
	}
	err = c.Break(ctx, "free", 1)
	if problem, _ := errors.AsType[*client.ProblemError](err); problem == nil || problem.Kind() != "lock-not-held" {
		t.Errorf("a break of nothing gives %v", err)
	}
}

// handsOver releases a lease that another waits for.
func handsOver(t *testing.T, c *client.Client, first *client.Lease) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	got := make(chan *client.Lease, 1)
	go func() {
		next, err := c.Acquire(ctx, first.Resource())
		if err != nil {
			t.Error(err)
		}
		got <- next
	}()
	testenv.Eventually(t, 10*time.Second, func() error {
		lock, err := c.Inspect(ctx, first.Resource())
		if err == nil && (lock.Waiters != 1 || len(lock.Queue) != 1) {
			err = fmt.Errorf("%+v", lock)
		}
		return err
	})
	if err := first.Release(ctx); err != nil {
		t.Error(err)
	}
	if err := first.Release(ctx); !errors.Is(err, client.ErrLeaseLost) {
		t.Errorf("a second release gives %v", err)
	}
	if next := <-got; next == nil || next.Token() <= first.Token() || next.Release(ctx) != nil {
		t.Errorf("the next lease is %v after %v", next, first)
	}
}

// obeys ends leases, loses answers and holds a resource when it is told to.
func obeys(t *testing.T, c *client.Client, server testServer) {
	t.Helper()
	ctx := t.Context()
	err := c.Do(ctx, "controlled", func(ctx context.Context, _ *client.Lease) error {
		server.order("end", "controlled")
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if !errors.Is(err, client.ErrLeaseLost) {
		t.Errorf("an end gives %v", err)
	}
	server.order("lose", "")
	lease, err := c.TryAcquire(ctx, "controlled")
	if err != nil {
		t.Fatalf("a lost answer gives %v", err)
	}
	server.order("lose", "")
	if err := lease.Release(ctx); err != nil {
		t.Errorf("a lost answer to a release gives %v", err)
	}
	server.order("hold", "controlled")
	if _, err := c.TryAcquire(ctx, "controlled"); !errors.Is(err, client.ErrHeld) {
		t.Errorf("what another holds gives %v", err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := c.Acquire(ctx, "controlled", client.Wait(20*time.Second))
		got <- err
	}()
	server.order("await", "controlled")
	server.order("let", "controlled")
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func keepsRecords(t *testing.T, c *client.Client) {
	t.Helper()
	ctx := t.Context()
	old, young := fencing.Claim{Resource: "record", Token: 5}, fencing.Claim{Resource: "record", Token: 9}
	if record, err := c.ReadRecord(ctx, "record"); err != nil || record.Version != 0 {
		t.Errorf("an unwritten record is %+v, %v", record, err)
	}
	if record, err := c.WriteRecord(ctx, old, json.RawMessage(`{"n":1}`)); err != nil || record.Version != 1 || record.Mark != 5 {
		t.Errorf("a write gives %+v, %v", record, err)
	}
	if record, err := c.ClaimRecord(ctx, young); err != nil || string(record.Value) != `{"n":1}` || record.Mark != 9 {
		t.Errorf("a claim gives %+v, %v", record, err)
	}
	_, err := c.WriteRecord(ctx, old, json.RawMessage(`2`))
	if problem, _ := errors.AsType[*client.ProblemError](err); !errors.Is(err, client.ErrLeaseLost) || problem.Presented != 5 || problem.HighestToken != 9 {
		t.Errorf("a stale write gives %v", err)
	}
	if record, err := c.DeleteRecord(ctx, young); err != nil || record.Value != nil || record.Version != 2 {
		t.Errorf("a delete gives %+v, %v", record, err)
	}
	if _, err := c.ClaimRecord(ctx, fencing.Claim{Resource: "rec/2", Token: 3}); err != nil {
		t.Fatal(err)
	}
	var listed []string
	for record, err := range c.Records(ctx, "rec") {
		listed = append(listed, fmt.Sprint(record.Resource, " ", record.Mark, " ", record.Version, err))
	}
	if got := strings.Join(listed, ", "); got != "rec/2 3 0 <nil>, record 9 2 <nil>" {
		t.Errorf("the list is %s", got)
	}
	var kinds []string
	for attempt, err := range c.History(ctx, "record") {
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, fmt.Sprint(attempt.Kind, attempt.Accepted))
	}
	if fmt.Sprint(kinds) != "[writetrue writefalse claimtrue writetrue]" {
		t.Errorf("the history is %v", kinds)
	}
}
