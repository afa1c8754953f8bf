package nodetest

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

func admissionTests() []test {
	return []test{
		{"an empty node holds nothing and does not vote", emptyNode},
		{"an empty node keeps no queue", emptyQueue},
		{"an admission is observed", observed},
		{"staging purges, and keeps the high-water mark", staging},
		{"a staged node does not vote", stagedDoesNotVote},
		{"an admitted node is not admitted twice", admittedOnce},
		{"a node that missed a bootstrap is staged though admitted", stagedThoughAdmitted},
		{"a node that missed a bootstrap has one quarantine, staged or not", missedStaged},
		{"of two admissions the one with the larger epoch is completed", largerEpochWins},
		{"another incarnation is not admitted", otherIncarnation},
		{"a node that is not staged is not loaded or admitted", notStaged},
		{"a quarantine has one note, and ends with the admission", quarantine},
		{"an admission is revoked from the node as observed", expulsion},
		{"a wipe deletes the note of a quarantine", wipeOfNote},
		{"a restart ends the admission", restart},
		{"an admission that began before a restart is refused", lateAdmission},
		{"a wipe ends the admission", wipe},
		{"OnlyIfEmpty refuses a node that holds anything", onlyIfEmpty},
		{"another cluster's node is refused and unchanged", foreign},
		{"a node belongs to one cluster", otherCluster},
		{"a release and a retraction are done where the gate is shut", releaseAtAShutGate},
		{"counters and locks are carried", carry},
		{"a carried lock expires", carriedLockExpires},
		{"secrets belong to the admission record", secrets},
		{"a token that cannot have been reached is refused", beyondReach},
		{"the recorded longest TTL only grows", maxTTLGrows},
	}
}

func emptyNode(s *suite) {
	seen := s.observe()
	if !seen.Empty {
		return // it bootstrapped itself
	}
	if (seen != node.Observation{Incarnation: seen.Incarnation, Empty: true}) || seen.Incarnation == "" {
		s.Errorf("%+v", seen)
	}
	s.wantShut()
	s.wantObserved(seen)
}

func emptyQueue(s *suite) {
	seen := s.observe()
	if !seen.Empty {
		return // it bootstrapped itself
	}
	s.want(heartbeat("s1", longTTL), node.Reply{Outcome: node.NotAdmitted, Epoch: seen.Epoch})
	s.want(dequeue("a", ticket("t1", "s1", 10)), outcome(node.Granted))
	s.wantObserved(seen)
	s.admit(100)
	s.want(heartbeat("s1", longTTL), outcome(node.Granted))
}

func observed(s *suite) {
	a := s.bootstrap(1234)
	a.Bootstrapped = a.Epoch - 1
	s.install(a)
	want := node.Observation{
		Incarnation: a.Incarnation, Admitted: true, Cluster: s.cluster, Epoch: a.Epoch,
		Marks: node.Marks{HighWater: s.observe().Marks.HighWater, MaxTTL: maxTTL, Bootstrapped: a.Bootstrapped},
	}
	if seen := s.observe(); seen != want || seen.Marks.HighWater < 1234 {
		s.Errorf("%+v, want %+v", seen, want)
	}
}

func stagedDoesNotVote(s *suite) {
	s.admit(100)
	a := s.bootstrap(0)
	s.must(s.Node.Stage(s.Context(), a))
	seen := s.observe()
	if seen.Admitted || seen.Empty || seen.Cluster != s.cluster || seen.Epoch != 0 || seen.Staged != a.Epoch || seen.Marks.HighWater != s.base || seen.Marks.MaxTTL != maxTTL {
		s.Errorf("%+v", seen)
	}
	s.wantShut()
	s.must(s.Node.Admit(s.Context(), a))
	s.epoch = a.Epoch
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
}

func admittedOnce(s *suite) {
	s.admit(100)
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	a := s.bootstrap(100)
	for _, bootstrapped := range []node.Epoch{0, s.epoch - 1, s.epoch} {
		a.Bootstrapped = bootstrapped
		s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), a))
	}
	a.Bootstrapped = a.Epoch
	for _, note := range []string{"", "a note", node.MissedNote(s.epoch - 1), node.MissedNote(s.epoch + 1)} { // observed in quarantine, or in another epoch
		a.Note = note
		s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), a))
	}
	s.want(read("a"), locked(s.base+1, "L1", longTTL))
}

func stagedThoughAdmitted(s *suite) {
	s.admit(100)
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	a := s.bootstrap(100)
	a.Bootstrapped = s.epoch + 1
	s.install(a)
	s.want(acquire("a", "L2"), granted(s.base+2, longTTL)) // the high-water mark survived the purge
}

func largerEpochWins(s *suite) {
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
	s.wantErr(node.ErrRaced, s.Node.Admit(s.Context(), second)) // completed already
	s.wantErr(node.ErrRaced, s.Node.Load(s.Context(), second, nil))
	s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), first))
	if seen := s.observe(); !seen.Admitted || seen.Epoch != second.Epoch {
		s.Errorf("%+v", seen)
	}
}

func otherIncarnation(s *suite) {
	a := s.bootstrap(100)
	other := a
	other.Incarnation = "0123456789abcdef0123456789abcdef01234567"
	before := s.observe()
	s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), other))
	s.wantObserved(before)
	s.must(s.Node.Stage(s.Context(), a))
	s.wantErr(node.ErrRaced, s.Node.Load(s.Context(), other, nil))
	s.wantErr(node.ErrRaced, s.Node.Admit(s.Context(), other))
	s.must(s.Node.Admit(s.Context(), a))
}

func notStaged(s *suite) {
	a := s.bootstrap(100)
	s.wantErr(node.ErrRaced, s.Node.Load(s.Context(), a, nil))
	s.wantErr(node.ErrRaced, s.Node.Admit(s.Context(), a))
}

func wipeOfNote(s *suite) {
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
}

func onlyIfEmpty(s *suite) {
	a := s.bootstrap(100)
	a.OnlyIfEmpty = true
	if s.observe().Empty {
		s.must(s.Node.Stage(s.Context(), a))
	}
	before := s.observe()
	s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), a))
	a.Cluster.Hash = "other"
	s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), a))
	s.wantObserved(before)
}

func releaseAtAShutGate(s *suite) {
	s.admit(100)
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	s.want(acquire("b", "L2"), granted(s.base+2, longTTL))
	s.Node.Join(node.Cluster{Nodes: 3, Hash: "beef"})
	refused := node.Reply{Outcome: node.NotAdmitted, Epoch: s.epoch}
	s.want(release("a", "L1", s.base+1), refused)
	s.want(retract("b", "L2", ""), refused)
	s.Node.Join(s.cluster)
	s.want(read("a"), outcome(node.NotHeld))
	s.want(read("b"), outcome(node.NotHeld))
	s.wantCounter("a", s.base+1)
}

func carriedLockExpires(s *suite) {
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
}

func maxTTLGrows(s *suite) {
	s.admit(100)
	a := s.bootstrap(100)
	a.MaxTTL = time.Second
	s.install(a)
	s.wantMaxTTL(maxTTL)
	a = s.bootstrap(100)
	a.MaxTTL = maxTTL + time.Second
	s.install(a)
	s.wantMaxTTL(maxTTL + time.Second)
}

func quarantine(s *suite) {
	a := s.bootstrap(100)
	first := a.Note // a node that bootstrapped itself has missed this bootstrap
	if first == "" {
		first = "first"
	}
	s.must(s.Node.Stage(s.Context(), a))
	s.must(s.Node.Quarantine(s.Context(), first))
	s.must(s.Node.Quarantine(s.Context(), "second"))
	s.wantNote(first)
	a = s.bootstrap(100)
	for _, other := range []string{"", "second"} {
		a.Note = other
		s.wantErr(node.ErrRaced, s.Node.Stage(s.Context(), a))
	}
	a.Note = first
	s.must(s.Node.Stage(s.Context(), a))
	s.wantNote(first)
	s.must(s.Node.Admit(s.Context(), a))
	s.wantNote("")
	s.wantErr(node.ErrRaced, s.Node.Quarantine(s.Context(), "late"))
	s.Node.Join(node.Cluster{Nodes: 3, Hash: "beef"})
	s.wantErr(node.ErrForeign, s.Node.Quarantine(s.Context(), "foreign"))
	s.Node.Join(s.cluster)
}

// missedStaged: several servers wait for the same quarantine of a node that missed a
// bootstrap, and one of them stages it.
func missedStaged(s *suite) {
	s.admit(100)
	missed := node.MissedNote(s.epoch)
	first, second := s.bootstrap(100), s.bootstrap(100)
	second.Epoch++
	s.must(s.Node.Stage(s.Context(), first))
	if seen := s.observe(); seen.Admitted || seen.Note != missed {
		s.Errorf("staged: %+v, want the note %q", seen, missed)
	}
	s.must(s.Node.Quarantine(s.Context(), "fresh"))
	s.must(s.Node.Stage(s.Context(), second))
	if seen := s.observe(); seen.Note != missed || seen.Staged != second.Epoch {
		s.Errorf("staged twice: %+v, want the note %q", seen, missed)
	}
	s.wantErr(node.ErrRaced, s.Node.Admit(s.Context(), first))
	s.must(s.Node.Admit(s.Context(), second))
	s.wantNote("")
	third := second // too late: that quarantine has ended
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
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	highWater, before := s.base+1, s.observe()
	s.wantErr(node.ErrRaced, expels.Expel(s.Context(), before.Incarnation, before.Epoch-1, "x"))
	s.wantErr(node.ErrRaced, expels.Expel(s.Context(), before.Incarnation, before.Epoch+1, "x"))
	s.wantErr(node.ErrRaced, expels.Expel(s.Context(), "another incarnation", before.Epoch, "x"))
	s.Node.Join(node.Cluster{Nodes: 3, Hash: "beef"})
	s.wantErr(node.ErrRaced, expels.Expel(s.Context(), before.Incarnation, before.Epoch, "x"))
	s.Node.Join(s.cluster)
	s.wantObserved(before)
	s.must(expels.Expel(s.Context(), before.Incarnation, before.Epoch, "first"))
	seen := s.observe()
	if seen.Admitted || seen.Note != "first" || seen.Epoch != before.Epoch || seen.Marks != before.Marks || seen.Empty {
		s.Errorf("%+v, was %+v", seen, before)
	}
	s.want(acquire("b", "L2"), node.Reply{Outcome: node.NotAdmitted, Epoch: s.epoch})
	s.want(read("a"), node.Reply{Outcome: node.NotAdmitted, Epoch: s.epoch})
	s.wantErr(node.ErrRaced, expels.Expel(s.Context(), before.Incarnation, before.Epoch, "second")) // once
	s.must(s.Node.Quarantine(s.Context(), "second"))
	s.wantNote("first")
	s.admit(5) // purges, and keeps the high-water mark, as after a restart
	s.wantHighWater(highWater)
	s.want(read("a"), outcome(node.NotHeld))
	s.wantErr(node.ErrRaced, expels.Expel(s.Context(), before.Incarnation, before.Epoch, "late")) // another epoch
}

func staging(s *suite) {
	s.admit(100)
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	s.want(acquire("b", "L2"), granted(s.base+2, longTTL))
	own := s.base + 2
	s.admit(5)
	s.wantHighWater(own)
	s.want(read("a"), outcome(node.NotHeld))
	s.wantCounter("a", own)
	if got := s.surveyed(); len(got) != 0 {
		s.Errorf("locked: %q", got)
	}
	s.admit(own + 1000)
	s.wantHighWater(own + 1000)
	s.want(acquire("a", "L1"), granted(own+1001, longTTL))
}

func restart(s *suite) {
	if s.Restart == nil {
		return
	}
	s.admit(100)
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	before := s.observe()
	s.Restart()
	seen := s.observe()
	if seen.Incarnation == before.Incarnation || seen.Admitted {
		s.Fatalf("%+v, was %+v", seen, before)
	}
	s.wantShut()
	s.admit(s.base + 50)
	s.want(read("a"), outcome(node.NotHeld))
	s.want(acquire("a", "L2"), granted(s.base+1, longTTL))
}

func lateAdmission(s *suite) {
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
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	before := s.observe()
	s.Wipe()
	if seen := s.observe(); seen.Admitted || !seen.Empty || seen.Epoch != 0 || seen.Incarnation != before.Incarnation {
		s.Errorf("%+v, was %+v", seen, before)
	}
	s.wantShut()
	if seen := s.observe(); !seen.Empty {
		s.Errorf("requests made an empty node %+v", seen)
	}
	s.admit(s.base + 50)
	s.want(acquire("a", "L2"), granted(s.base+1, longTTL))
}

func (s *suite) otherClusters() []node.Cluster {
	return []node.Cluster{{Nodes: s.cluster.Nodes, Hash: "beef"}, {Nodes: s.cluster.Nodes + 2, Hash: s.cluster.Hash}}
}

func foreign(s *suite) {
	s.admit(100)
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	for _, other := range s.otherClusters() {
		a := s.bootstrap(100)
		a.Cluster = other
		s.wantErr(node.ErrForeign, s.Node.Stage(s.Context(), a))
		s.wantErr(node.ErrRaced, s.Node.Admit(s.Context(), a))
	}
	s.want(read("a"), locked(s.base+1, "L1", longTTL))
	// Also during an admission.
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
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	for _, other := range append(s.otherClusters(), node.Cluster{}) {
		s.Node.Join(other)
		s.wantShut()
		if seen := s.observe(); seen.Cluster != s.cluster {
			s.Errorf("the node changed its cluster: %+v", seen)
		}
	}
	s.Node.Join(s.cluster)
	s.want(acquire("b", "L1"), granted(s.base+2, longTTL))
}

func carry(s *suite) {
	s.admit(100)
	floor := s.base
	a := s.bootstrap(floor)
	s.must(s.Node.Stage(s.Context(), a))
	for _, page := range [][]node.CarriedLock{
		{
			{Resource: "a b", Counter: floor - 40, Owner: "L1", Grant: floor - 45, Remaining: longTTL / 2, TTL: longTTL, Meta: "meta of L1"},
			{Resource: "c", Counter: floor - 30},
		},
		{{Resource: "d*", Counter: floor + 7, Owner: "L2", Grant: floor + 7, Remaining: longTTL, TTL: longTTL}},
		{{Resource: "f", Counter: floor + 2, Owner: "L3", Grant: floor + 2, Remaining: longTTL, TTL: longTTL, Keyed: true}},
		nil,
	} {
		s.must(s.Node.Load(s.Context(), a, page))
	}
	s.must(s.Node.Admit(s.Context(), a))
	s.epoch = a.Epoch
	for resource, want := range map[string]fencing.Token{"a b": floor - 40, "c": floor - 30, "d*": floor + 7, "e": floor + 7} {
		s.wantCounter(resource, want)
	}
	s.wantHighWater(floor + 7)
	half := held(floor-45, "L1", longTTL)
	half.Remaining = longTTL / 2
	s.want(acquire("a b", "L9"), half)
	s.want(confirm("a b", "L1", floor-44), granted(floor-44, longTTL/2))
	s.wantCounter("a b", floor-40)
	s.want(extend("a b", "L1", floor-41, longTTL), withMeta(granted(floor-41, longTTL), "meta of L1"))
	s.want(release("a b", "L1", floor-41), granted(floor-41, 0))
	s.want(extend("a b", "L1", floor-41, longTTL), outcome(node.NotHeld))
	s.want(extend("c", "L3", floor-30, longTTL), recreated(floor-30))
	s.want(acquire("a b", "L9"), granted(floor-39, longTTL))
	s.want(acquire("d*", "L2"), withMeta(existing(floor+7, "L2"), ""))
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
