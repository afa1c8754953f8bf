package nodetest

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

func admissionTests() []test { //nolint:gocognit,funlen // a table of scenarios
	return []test{
		{"an empty node holds nothing and votes nothing", func(s *suite) {
			seen := s.observe()
			if !seen.Empty {
				return // it bootstrapped itself
			}
			if (seen != node.Observation{Incarnation: seen.Incarnation, Empty: true}) || seen.Incarnation == "" {
				s.Errorf("%+v", seen)
			}
			s.wantShut()
			if again := s.observe(); again != seen {
				s.Errorf("being asked changed it: %+v", again)
			}
		}},
		{"an admission is seen", func(s *suite) {
			a := s.bootstrap(1234)
			a.Bootstrapped = a.Epoch - 1
			s.must(s.Node.Stage(s.Context(), a))
			s.must(s.Node.Admit(s.Context(), a))
			want := node.Observation{
				Incarnation: a.Incarnation, Admitted: true, Cluster: s.cluster, Epoch: a.Epoch,
				Marks: node.Marks{HighWater: s.observe().Marks.HighWater, MaxTTL: maxTTL, Bootstrapped: a.Bootstrapped},
			}
			if seen := s.observe(); seen != want || seen.Marks.HighWater < 1234 {
				s.Errorf("%+v, want %+v", seen, want)
			}
		}},
		{"staging purges, and keeps what must be kept", staging},
		{"a staged node votes nothing", func(s *suite) {
			s.admit(100)
			a := s.bootstrap(0)
			s.must(s.Node.Stage(s.Context(), a))
			seen := s.observe()
			if seen.Admitted || seen.Empty || seen.Cluster != s.cluster || seen.Epoch != 0 || seen.Staged != a.Epoch || seen.Marks.HighWater != s.high || seen.Marks.MaxTTL != maxTTL {
				s.Errorf("%+v", seen)
			}
			s.wantShut()
			s.must(s.Node.Admit(s.Context(), a))
			s.epoch = a.Epoch
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
		}},
		{"an admitted node is not admitted twice", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			a := s.bootstrap(100)
			for _, bootstrapped := range []node.Epoch{0, s.epoch - 1, s.epoch} {
				a.Bootstrapped = bootstrapped
				s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), a))
			}
			a.Bootstrapped = a.Epoch
			for _, note := range []string{"", "a note", node.MissedNote(s.epoch - 1), node.MissedNote(s.epoch + 1)} { // seen out, or in another epoch
				a.Note = note
				s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), a))
			}
			s.want(read("a"), locked(s.high+1, "L1", longTTL))
		}},
		{"a node that missed a bootstrap is staged though admitted", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			a := s.bootstrap(100)
			a.Bootstrapped = s.epoch + 1
			s.must(s.Node.Stage(s.Context(), a))
			s.must(s.Node.Admit(s.Context(), a))
			s.epoch = a.Epoch
			s.want(acquire("a", "L2"), granted(s.high+2, longTTL)) // high outlived the purge
		}},
		{"a node that was away serves one silence, staged or not", awayStaged},
		{"of two admitters the one with the larger epoch goes on", func(s *suite) {
			first, second := s.bootstrap(100), s.bootstrap(100)
			second.Epoch++
			s.must(s.Node.Stage(s.Context(), first))
			s.must(s.Node.Stage(s.Context(), second))
			s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), first))
			s.must(s.Node.Stage(s.Context(), second))
			s.wantErr(node.ErrRaced, s.Node.Load(s.Context(), first, nil))
			s.wantErr(node.ErrRaced, s.Node.Admit(s.Context(), first))
			s.must(s.Node.Load(s.Context(), second, nil))
			s.must(s.Node.Admit(s.Context(), second))
			s.wantErr(node.ErrRaced, s.Node.Admit(s.Context(), first))
			s.wantErr(node.ErrRaced, s.Node.Admit(s.Context(), second)) // is through
			s.wantErr(node.ErrRaced, s.Node.Load(s.Context(), second, nil))
			s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), first))
			if seen := s.observe(); !seen.Admitted || seen.Epoch != second.Epoch {
				s.Errorf("%+v", seen)
			}
		}},
		{"another incarnation is not admitted", func(s *suite) {
			a := s.bootstrap(100)
			other := a
			other.Incarnation = "0123456789abcdef0123456789abcdef01234567"
			before := s.observe()
			s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), other))
			if seen := s.observe(); seen != before {
				s.Errorf("%+v, was %+v", seen, before)
			}
			s.must(s.Node.Stage(s.Context(), a))
			s.wantErr(node.ErrRaced, s.Node.Load(s.Context(), other, nil))
			s.wantErr(node.ErrRaced, s.Node.Admit(s.Context(), other))
			s.must(s.Node.Admit(s.Context(), a))
		}},
		{"nothing is loaded or admitted that was not staged", func(s *suite) {
			a := s.bootstrap(100)
			s.wantErr(node.ErrRaced, s.Node.Load(s.Context(), a, nil))
			s.wantErr(node.ErrRaced, s.Node.Admit(s.Context(), a))
		}},
		{"a quarantine is noted once, and ends with the admission", quarantine},
		{"an admission is retracted from the node as it was seen", expulsion},
		{"a wipe takes the note of a quarantine away", func(s *suite) {
			if s.Wipe == nil {
				return
			}
			s.admit(100)
			s.Wipe()
			s.must(s.Node.Quarantine(s.Context(), "first"))
			before := s.bootstrap(100)
			s.Wipe()
			s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), before))
			s.must(s.Node.Quarantine(s.Context(), "second"))
			s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), before))
			if seen := s.observe(); seen.Note != "second" || !seen.Empty {
				s.Errorf("%+v", seen)
			}
			s.admit(100)
		}},
		{"a restart takes the admission away", restart},
		{"an admission from before a restart comes too late", lateInstall},
		{"a wipe takes the admission away", wipe},
		{"only an empty node, if so asked", func(s *suite) {
			a := s.bootstrap(100)
			a.OnlyIfEmpty = true
			if s.observe().Empty {
				s.must(s.Node.Stage(s.Context(), a))
			}
			before := s.observe()
			s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), a))
			a.Cluster.Hash = "other"
			s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), a))
			if seen := s.observe(); seen != before {
				s.Errorf("%+v, was %+v", seen, before)
			}
		}},
		{"another cluster's node is left alone", foreign},
		{"a node belongs to one cluster", otherCluster},
		{"a release and a retraction are done even where they are no answer", func(s *suite) {
			s.admit(100)
			s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
			s.want(acquire("b", "L2"), granted(s.high+2, longTTL))
			s.Node.Join(node.Cluster{Nodes: 3, Hash: "beef"})
			refused := node.Reply{Outcome: node.NotAdmitted, Epoch: s.epoch}
			s.want(release("a", "L1", s.high+1), refused)
			s.want(retract("b", "L2", ""), refused)
			s.Node.Join(s.cluster)
			s.want(read("a"), outcome(node.NotHeld))
			s.want(read("b"), outcome(node.NotHeld))
			if counter := s.counter("a"); counter != s.high+1 { // which would be to vote
				s.Errorf("counter of a is %d, want %d", counter, s.high+1)
			}
		}},
		{"counters and locks are carried", carry},
		{"a carried lock ends", func(s *suite) {
			a := s.bootstrap(100)
			s.must(s.Node.Stage(s.Context(), a))
			s.must(s.Node.Load(s.Context(), a, []node.CarriedLock{
				{Resource: "a", Counter: 105, Owner: "L1", Grant: 103, Remaining: shortTTL, TTL: longTTL},
				{Resource: "b", Counter: 105, Owner: "L1", Grant: 103, Remaining: 0, TTL: longTTL},
			}))
			s.must(s.Node.Admit(s.Context(), a))
			s.epoch = a.Epoch
			s.expires("a", shortTTL)
			s.expires("b", time.Millisecond)
		}},
		{"the secrets come with the admission and go with it", secrets},
		{"no token takes a node beyond what can have been reached", beyondReach},
		{"the recorded longest TTL only grows", func(s *suite) {
			s.admit(100)
			a := s.bootstrap(100)
			a.MaxTTL = time.Second
			s.must(s.Node.Stage(s.Context(), a))
			s.must(s.Node.Admit(s.Context(), a))
			if got := s.observe().Marks.MaxTTL; got != maxTTL {
				s.Errorf("%s, want %s", got, maxTTL)
			}
			a = s.bootstrap(100)
			a.MaxTTL = maxTTL + time.Second
			s.must(s.Node.Stage(s.Context(), a))
			s.must(s.Node.Admit(s.Context(), a))
			if got := s.observe().Marks.MaxTTL; got != maxTTL+time.Second {
				s.Errorf("%s, want %s", got, maxTTL+time.Second)
			}
		}},
	}
}

func (s *suite) wantErr(want, got error) {
	s.Helper()
	if !errors.Is(got, want) {
		s.Errorf("error %v, want %v", got, want)
	}
}

func quarantine(s *suite) {
	a := s.bootstrap(100)
	first := a.Note // of a node that bootstrapped itself: that it was away
	if first == "" {
		first = "first"
	}
	s.must(s.Node.Stage(s.Context(), a))
	s.must(s.Node.Quarantine(s.Context(), first))
	s.must(s.Node.Quarantine(s.Context(), "second"))
	if seen := s.observe(); seen.Note != first {
		s.Errorf("noted %q", seen.Note)
	}
	a = s.bootstrap(100)
	for _, other := range []string{"", "second"} {
		a.Note = other
		s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), a))
	}
	a.Note = first
	s.must(s.Node.Stage(s.Context(), a))
	if seen := s.observe(); seen.Note != first {
		s.Errorf("staging made the note %q", seen.Note)
	}
	s.must(s.Node.Admit(s.Context(), a))
	if seen := s.observe(); seen.Note != "" {
		s.Errorf("admitted with the note %q", seen.Note)
	}
	s.wantErr(node.ErrRaced, s.Node.Quarantine(s.Context(), "late"))
	s.Node.Join(node.Cluster{Nodes: 3, Hash: "beef"})
	s.wantErr(node.ErrForeign, s.Node.Quarantine(s.Context(), "foreign"))
	s.Node.Join(s.cluster)
}

// awayStaged: several servers wait for the same silence of a node that was away,
// and one of them stages it.
func awayStaged(s *suite) {
	s.admit(100)
	away := node.MissedNote(s.epoch)
	first, second := s.bootstrap(100), s.bootstrap(100)
	second.Epoch++
	s.must(s.Node.Stage(s.Context(), first))
	if seen := s.observe(); seen.Admitted || seen.Note != away {
		s.Errorf("staged: %+v, want the note %q", seen, away)
	}
	s.must(s.Node.Quarantine(s.Context(), "fresh"))
	s.must(s.Node.Stage(s.Context(), second))
	if seen := s.observe(); seen.Note != away || seen.Staged != second.Epoch {
		s.Errorf("staged twice: %+v, want the note %q", seen, away)
	}
	s.wantErr(node.ErrRaced, s.Node.Admit(s.Context(), first))
	s.must(s.Node.Admit(s.Context(), second))
	if seen := s.observe(); seen.Note != "" {
		s.Errorf("admitted with the note %q", seen.Note)
	}
	third := second // comes late: that silence is over
	third.Epoch += 10
	third.Bootstrapped = third.Epoch
	s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), third))
	if s.Wipe != nil {
		s.Wipe()
		s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), third))
	}
	if s.Restart != nil {
		s.admit(100)
		s.Restart()
		third.Incarnation = s.observe().Incarnation
		s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), third))
	}
}

// expeller is the part of node.Clocked that changes the node.
type expeller interface {
	Expel(ctx context.Context, incarnation string, epoch node.Epoch, note string) error
}

func expulsion(s *suite) {
	expels, ok := s.Node.(expeller)
	if !ok {
		return // it has no clock of its own
	}
	s.admit(100)
	s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
	high, before := s.high+1, s.observe()
	s.wantErr(node.ErrRaced, expels.Expel(s.Context(), before.Incarnation, before.Epoch-1, "x"))
	s.wantErr(node.ErrRaced, expels.Expel(s.Context(), before.Incarnation, before.Epoch+1, "x"))
	s.wantErr(node.ErrRaced, expels.Expel(s.Context(), "another life", before.Epoch, "x"))
	s.Node.Join(node.Cluster{Nodes: 3, Hash: "beef"})
	s.wantErr(node.ErrRaced, expels.Expel(s.Context(), before.Incarnation, before.Epoch, "x"))
	s.Node.Join(s.cluster)
	if seen := s.observe(); seen != before {
		s.Errorf("%+v, was %+v", seen, before)
	}
	s.must(expels.Expel(s.Context(), before.Incarnation, before.Epoch, "first"))
	seen := s.observe()
	if seen.Admitted || seen.Note != "first" || seen.Epoch != before.Epoch || seen.Marks != before.Marks || seen.Empty {
		s.Errorf("%+v, was %+v", seen, before)
	}
	s.want(acquire("b", "L2"), node.Reply{Outcome: node.NotAdmitted, Epoch: s.epoch})
	s.want(read("a"), node.Reply{Outcome: node.NotAdmitted, Epoch: s.epoch})
	s.wantErr(node.ErrRaced, expels.Expel(s.Context(), before.Incarnation, before.Epoch, "second")) // once
	s.must(s.Node.Quarantine(s.Context(), "second"))
	if seen := s.observe(); seen.Note != "first" {
		s.Errorf("noted %q", seen.Note)
	}
	s.admit(5) // as after a restart: purged, and high is kept
	if s.high != high {
		s.Errorf("high is %d, want its own, %d", s.high, high)
	}
	s.want(read("a"), outcome(node.NotHeld))
	s.wantErr(node.ErrRaced, expels.Expel(s.Context(), before.Incarnation, before.Epoch, "late")) // another epoch
}

func staging(s *suite) {
	s.admit(100)
	s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
	s.want(acquire("b", "L2"), granted(s.high+2, longTTL))
	high := s.high + 2
	s.admit(5)
	if s.high != high {
		s.Fatalf("high is %d, want its own, %d", s.high, high)
	}
	s.want(read("a"), outcome(node.NotHeld))
	if got := s.counter("a"); got != high {
		s.Errorf("the counter is %d: it outlived the purge", got)
	}
	if got := s.surveyed(); len(got) != 0 {
		s.Errorf("locked: %q", got)
	}
	s.admit(high + 1000)
	if s.high != high+1000 {
		s.Fatalf("high is %d, want the floor, %d", s.high, high+1000)
	}
	s.want(acquire("a", "L1"), granted(high+1001, longTTL))
}

func restart(s *suite) {
	if s.Restart == nil {
		return
	}
	s.admit(100)
	s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
	before := s.observe()
	s.Restart()
	seen := s.observe()
	if seen.Incarnation == before.Incarnation || seen.Admitted {
		s.Fatalf("%+v, was %+v", seen, before)
	}
	s.wantShut()
	s.admit(s.high + 50)
	s.want(read("a"), outcome(node.NotHeld))
	s.want(acquire("a", "L2"), granted(s.high+1, longTTL))
}

func lateInstall(s *suite) {
	if s.Restart == nil {
		return
	}
	staged, notYet := s.bootstrap(100), s.bootstrap(100)
	s.must(s.Node.Stage(s.Context(), staged))
	s.Restart()
	s.wantErr(node.ErrRaced, s.Node.Load(s.Context(), staged, []node.CarriedLock{{Resource: "a", Counter: 5}}))
	s.wantErr(node.ErrRaced, s.Node.Admit(s.Context(), staged))
	s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), notYet))
	if seen := s.observe(); seen.Admitted {
		s.Errorf("%+v", seen)
	}
	s.admit(100)
	s.wantErr(node.ErrRaced, s.Node.Admit(s.Context(), staged))
}

func wipe(s *suite) {
	if s.Wipe == nil {
		return
	}
	s.admit(100)
	s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
	before := s.observe()
	s.Wipe()
	if seen := s.observe(); seen.Admitted || !seen.Empty || seen.Epoch != 0 || seen.Incarnation != before.Incarnation {
		s.Errorf("%+v, was %+v", seen, before)
	}
	s.wantShut()
	if seen := s.observe(); !seen.Empty {
		s.Errorf("an empty node that was asked is empty no longer: %+v", seen)
	}
	s.admit(s.high + 50)
	s.want(acquire("a", "L2"), granted(s.high+1, longTTL))
}

func foreign(s *suite) {
	s.admit(100)
	s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
	for _, other := range []node.Cluster{
		{Nodes: s.cluster.Nodes, Hash: "beef"}, {Nodes: s.cluster.Nodes + 2, Hash: s.cluster.Hash},
	} {
		a := s.bootstrap(100)
		a.Cluster = other
		s.wantErr(node.ErrForeign, s.Node.Stage(s.Context(), a))
		s.wantErr(node.ErrRaced, s.Node.Admit(s.Context(), a))
	}
	s.want(read("a"), locked(s.high+1, "L1", longTTL))
	// Also while an admission is under way.
	a := s.bootstrap(100)
	s.must(s.Node.Stage(s.Context(), a))
	theirs := a
	theirs.Cluster.Hash = "beef"
	theirs.Epoch++
	s.wantErr(node.ErrForeign, s.Node.Stage(s.Context(), theirs))
	s.must(s.Node.Admit(s.Context(), a))
}

func otherCluster(s *suite) {
	s.admit(100)
	s.want(acquire("a", "L1"), granted(s.high+1, longTTL))
	for _, other := range []node.Cluster{
		{Nodes: s.cluster.Nodes, Hash: "beef"}, {Nodes: s.cluster.Nodes + 2, Hash: s.cluster.Hash}, {},
	} {
		s.Node.Join(other)
		s.wantShut()
		if seen := s.observe(); seen.Cluster != s.cluster {
			s.Errorf("observed %+v", seen)
		}
	}
	s.Node.Join(s.cluster)
	s.want(acquire("b", "L1"), granted(s.high+2, longTTL))
}

func carry(s *suite) {
	s.admit(100)
	floor := s.high
	a := s.bootstrap(floor)
	s.must(s.Node.Stage(s.Context(), a))
	s.must(s.Node.Load(s.Context(), a, []node.CarriedLock{
		{Resource: "a b", Counter: floor - 40, Owner: "L1", Grant: floor - 45, Remaining: longTTL / 2, TTL: longTTL, Meta: "meta of L1"},
		{Resource: "c", Counter: floor - 30},
	}))
	s.must(s.Node.Load(s.Context(), a, []node.CarriedLock{{Resource: "d*", Counter: floor + 7, Owner: "L2", Grant: floor + 7, Remaining: longTTL, TTL: longTTL}}))
	s.must(s.Node.Load(s.Context(), a, []node.CarriedLock{
		{Resource: "f", Counter: floor + 2, Owner: "L3", Grant: floor + 2, Remaining: longTTL, TTL: longTTL, Keyed: true},
	}))
	s.must(s.Node.Load(s.Context(), a, nil))
	s.must(s.Node.Admit(s.Context(), a))
	s.epoch = a.Epoch
	for resource, want := range map[string]fencing.Token{"a b": floor - 40, "c": floor - 30, "d*": floor + 7, "e": floor + 7} {
		if got := s.counter(resource); got != want {
			s.Errorf("counter of %q is %d, want %d", resource, got, want)
		}
	}
	if high := s.observe().Marks.HighWater; high != floor+7 {
		s.Errorf("high is %d, want %d", high, floor+7)
	}
	s.want(acquire("a b", "L9"), node.Reply{
		Outcome: node.Held, Grant: floor - 45, Remaining: longTTL / 2, TTL: longTTL, Owner: "L1", Meta: "meta of L1",
	})
	s.want(confirm("a b", "L1", floor-44), granted(floor-44, longTTL/2))
	if got := s.counter("a b"); got != floor-40 {
		s.Errorf("a confirm below the counter moved it to %d", got)
	}
	s.want(extend("a b", "L1", floor-41, longTTL), withMeta(granted(floor-44, longTTL), "meta of L1"))
	s.want(release("a b", "L1", floor-41), granted(floor-44, 0))
	s.want(extend("a b", "L1", floor-41, longTTL), outcome(node.NotHeld))
	s.want(extend("c", "L3", floor-30, longTTL), node.Reply{
		Outcome: node.Granted, Recreated: true, Grant: floor - 30, Remaining: longTTL,
	})
	s.want(acquire("a b", "L9"), granted(floor-39, longTTL))
	s.want(acquire("d*", "L2"), node.Reply{
		Outcome: node.Granted, Existing: true, Grant: floor + 7, Remaining: longTTL, TTL: longTTL,
	})
	for _, lock := range s.survey() {
		if recreated := "c"; lock.Resource != recreated && lock.Keyed != (lock.Resource == "f") {
			s.Errorf("carried as %+v", lock)
		}
	}
	s.want(retract("f", "L3", "attempt1"), outcome(node.NotHeld)) // no attempt is carried
	s.want(release("f", "L3", floor+1), outcome(node.NotHeld))
	s.want(release("f", "L3", floor+2), granted(floor+2, 0))
	s.want(retract("d*", "L2", ""), granted(floor+7, 0))
}
