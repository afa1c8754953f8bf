package nodetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// afterItsDeadline tests that a node that checks deadlines does not send an operation after its deadline.
func afterItsDeadline(s *suite) {
	op := acquire("a", "L1")
	op.Deadline = time.Now().Add(-time.Second)
	if r := s.do(op); r.Outcome != node.Granted && (r.Outcome != node.Failed || r.Sent || r.Err == nil) {
		s.Errorf("%+v, want a failure that was not sent", r)
	}
}

func sideBySide(s *suite) {
	const callers = 64
	replies := make(sink, 2*callers)
	for i := range callers {
		op := acquire(fmt.Sprintf("r%d", i), "L1")
		op.Epoch = s.epoch
		s.Node.Submit(&op, i, replies)
	}
	seen, grants := make(map[int]bool), make(map[fencing.Token]bool)
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for len(seen) < callers {
		select {
		case d := <-replies:
			if seen[d.index] || grants[d.reply.Grant] || d.reply.Outcome != node.Granted {
				s.Fatalf("index %d: %+v; index seen %v, grant seen %v", d.index, d.reply, seen[d.index], grants[d.reply.Grant])
			}
			seen[d.index], grants[d.reply.Grant] = true, true
		case <-timeout.C:
			s.Fatalf("%d of %d replies", len(seen), callers)
		}
	}
}

// inOrder passes a lock from owner to owner without waiting for replies, as a server does whose waiter
// acquires directly after a release.
func inOrder(s *suite) {
	const owners = 40
	replies := make(sink, 2*owners)
	for i := range owners {
		owner := fmt.Sprintf("L%d", i)
		for k, op := range []node.Op{acquire("a", owner), retract("a", owner)} {
			op.Epoch = s.epoch
			s.Node.Submit(&op, 2*i+k, replies)
		}
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for range 2 * owners {
		select {
		case d := <-replies:
			if d.reply.Outcome != node.Granted {
				s.Fatalf("operation %d: %+v", d.index, d.reply)
			}
		case <-timeout.C:
			s.Fatal("not all replied")
		}
	}
}

// longQueue tests that a read lists only the first MaxShown tickets.
func longQueue(s *suite) {
	const all = node.MaxShown + 20
	for i := range all {
		t := node.Ticket{ID: fmt.Sprintf("t%d", i), Server: "s1", Arrival: int64(all - i)}
		if r := s.do(node.Op{Kind: node.OpEnqueue, Resource: "a", Ticket: t}); r.Outcome != node.Granted {
			s.Fatalf("%+v", r)
		}
	}
	r := s.do(read("a"))
	if r.Waiting != all || len(r.Queue) != node.MaxShown {
		s.Fatalf("%d wait and %d are listed", r.Waiting, len(r.Queue))
	}
	for i, t := range r.Queue {
		if t.Arrival != int64(i+1) {
			s.Fatalf("listed at %d: %+v", i, t)
		}
	}
}

func survey(s *suite) {
	const locks = 1300
	want := make(map[string]node.CarriedLock, locks)
	replies := make(sink, locks)
	for i := range locks {
		resource := fmt.Sprintf("r%d", i)
		op := acquire(resource, "L"+resource)
		op.Epoch = s.epoch
		s.Node.Submit(&op, i, replies)
		want[resource] = node.CarriedLock{
			Resource: resource, Owner: op.Owner, Grant: s.base + 1 + fencing.Token(i), TTL: longTTL, Meta: op.Meta,
		}
	}
	for range locks {
		if d := <-replies; d.reply.Outcome != node.Granted {
			s.Fatalf("%+v", d.reply)
		}
	}
	seen := 0
	found, err := surveyAll(s.Context(), s.Node, s.epoch)
	s.must(err)
	for _, lock := range found {
		if lock.Remaining > longTTL || lock.Remaining < longTTL-s.mayHavePassed() {
			s.Errorf("%+v", lock)
		}
		lock.Remaining, lock.Counter = 0, 0
		if w, ok := want[lock.Resource]; ok { // a page may repeat a lock
			seen++
			if lock != w {
				s.Errorf("%+v, want %+v", lock, w)
			}
			delete(want, lock.Resource)
		}
	}
	if seen != locks {
		s.Errorf("%d locks, want %d", seen, locks)
	}
}

func listingInPages(s *suite) {
	var want []string
	for i := range 60 {
		resource := fmt.Sprintf("p/%02d", i)
		want = append(want, resource)
		s.do(acquire(resource, "L1"))
		s.do(acquire(fmt.Sprintf("q/%02d", i), "L1"))
	}
	for _, limit := range []int{1, 7, 1000} {
		if got := s.scanned("p/", limit); !slices.Equal(got, want) {
			s.Errorf("pages of %d: %q", limit, got)
		}
	}
}

func strangeCursor(s *suite) {
	var field *lockcore.FieldError
	if _, _, err := s.Node.Scan(s.Context(), "", "!no cursor!", 10); !errors.As(err, &field) || field.Field != "cursor" {
		s.Errorf("%v, want a FieldError of the cursor", err)
	}
}
