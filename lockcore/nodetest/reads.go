package nodetest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

func readTests() []test {
	return []test{
		{"a fenced read installs a strictly larger epoch", fence},
		{"a survey pages through all locks", survey},
		{"a survey and counters are of exactly one epoch", readsOfAnEpoch},
		{"a survey leaves out expired and deleted locks", surveyOfEnded},
		{"counters come in the order of the resources", countersInOrder},
		{"a listing comes in pages", listingInPages},
		{"a cursor that no call returned is refused", strangeCursor},
		{"nothing is read where the gate is shut", readsAtAShutGate},
	}
}

func readsOfAnEpoch(s *suite) {
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	for _, epoch := range []node.Epoch{s.epoch - 1, s.epoch + 1} {
		_, _, err := s.Node.Survey(s.Context(), epoch, "")
		s.wantStale(err)
		_, err = s.Node.Counters(s.Context(), epoch, []string{"a"})
		s.wantStale(err)
	}
	if got := s.scanned("", 10); !slices.Equal(got, []string{"a"}) {
		s.Errorf("a listing returned %q in any epoch", got)
	}
}

func surveyOfEnded(s *suite) {
	s.want(acquireFor("a", "L1", shortTTL), granted(s.base+1, shortTTL))
	s.want(acquire("b", "L2"), granted(s.base+2, longTTL))
	s.want(acquire("c", "L3"), granted(s.base+3, longTTL))
	s.want(retract("c", "L3", ""), granted(s.base+3, 0))
	s.expires("a", shortTTL)
	if got := s.surveyed(); !slices.Equal(got, []string{"b"}) {
		s.Errorf("surveyed %q", got)
	}
	if got := s.scanned("", 10); !slices.Equal(got, []string{"b"}) {
		s.Errorf("scanned %q", got)
	}
}

func countersInOrder(s *suite) {
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	s.want(acquire("b", "L2"), granted(s.base+2, longTTL))
	s.want(acquire("c", "L3"), granted(s.base+3, longTTL))
	got, err := s.Node.Counters(s.Context(), s.epoch, []string{"b", "none", "a", "c", "a"})
	s.must(err)
	if want := []fencing.Token{s.base + 2, s.base + 3, s.base + 1, s.base + 3, s.base + 1}; !slices.Equal(got, want) {
		s.Errorf("%v, want %v", got, want)
	}
	none, err := s.Node.Counters(s.Context(), s.epoch, nil)
	if err != nil || len(none) != 0 {
		s.Errorf("no counters: %v, %v", none, err)
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

func readsAtAShutGate(s *suite) {
	a := s.bootstrap(100)
	s.must(s.Node.Stage(s.Context(), a))
	s.wantShut()
}

func (s *suite) wantStale(err error) {
	s.Helper()
	var stale *node.StaleEpochError
	if !errors.As(err, &stale) || stale.Epoch != s.epoch || !errors.Is(err, node.ErrStaleEpoch) {
		s.Errorf("%v, want ErrStaleEpoch with epoch %d", err, s.epoch)
	}
}

// wantShut: everything that passes the gate is refused.
func (s *suite) wantShut() {
	s.Helper()
	ctx, epoch := s.Context(), s.observe().Epoch
	_, fenced := s.Node.InstallEpoch(ctx, epoch+5)
	_, _, surveyed := s.Node.Survey(ctx, epoch, "")
	_, counted := s.Node.Counters(ctx, epoch, []string{"a"})
	_, _, scanned := s.Node.Scan(ctx, "", "", 10)
	raised := s.Node.RaiseMaxTTL(ctx, longTTL)
	for what, err := range map[string]error{
		"fence": fenced, "survey": surveyed, "counters": counted, "scan": scanned, "raise": raised,
	} {
		if !errors.Is(err, node.ErrNotAdmitted) {
			s.Errorf("%s: %v, want ErrNotAdmitted", what, err)
		}
	}
	refused := node.Reply{Outcome: node.NotAdmitted, Epoch: epoch}
	for _, op := range []node.Op{
		acquire("a", "L1"), confirm("a", "L1", 5), extend("a", "L1", fencing.MaxToken, longTTL), release("a", "L1", 5), retract("a", "L1", ""), read("a"),
		enqueue("a", ticket("t1", "s1", 1)), heartbeat("s1", longTTL),
	} {
		for _, op.Epoch = range []node.Epoch{max(epoch, 1), epoch + 1} {
			if diff := s.diff(op.Kind, s.do(op), refused); diff != "" {
				s.Errorf("operation %d: %s", op.Kind, diff)
			}
		}
	}
}

func fence(s *suite) {
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	for _, epoch := range []node.Epoch{s.epoch, s.epoch - 1} {
		_, err := s.Node.InstallEpoch(s.Context(), epoch)
		s.wantStale(err)
	}
	old := s.epoch
	marks, err := s.Node.InstallEpoch(s.Context(), old+1)
	s.must(err)
	if want := (node.Marks{HighWater: s.base + 1, MaxTTL: maxTTL, Bootstrapped: old}); marks != want {
		s.Errorf("marks %+v, want %+v", marks, want)
	}
	if seen := s.observe(); !seen.Admitted || seen.Epoch != old+1 || seen.Marks != marks {
		s.Errorf("%+v", seen)
	}
	s.epoch = old + 1
	stale := confirm("a", "L1", s.base+5)
	stale.Epoch = old
	s.want(stale, node.Reply{Outcome: node.StaleEpoch, Epoch: old + 1})
	s.want(confirm("a", "L1", s.base+5), granted(s.base+5, longTTL))
	_, err = s.Node.InstallEpoch(s.Context(), old+1)
	s.wantStale(err)
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
	for _, lock := range s.survey() {
		if lock.Remaining > longTTL || lock.Remaining < longTTL-s.passed() {
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
