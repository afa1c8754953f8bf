package nodetest

import (
	"slices"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

func mapTests() []test {
	return []test{
		{"votes are counted by the node's map alone", votesByMap},
		{"a release counts by the node's map alone, and is done", releasesByMap},
		{"a map is installed in the node's own epoch", mapEpochs},
		{"a counter below the floor reads as the floor while there is no lock", mapFloor},
		{"what moves replaces what an earlier stay left", receives},
		{"a rejoin and a bootstrap bring a map", admissionsWithMaps},
		{"the servers that live are listed", livingServers},
	}
}

// by is the operation of a server with that map.
func by(name string, op node.Op) node.Op {
	op.Map = name
	return op
}

func scoped(resource, owner, scope string) node.Op {
	op := attempt(resource, owner, "try")
	op.Scope = scope
	return op
}

func (s *suite) installMap(name string, floor fencing.Token) {
	s.Helper()
	s.generation++
	s.must(s.Node.InstallMap(s.Context(), node.Map{Name: name, Epoch: s.epoch, Floor: floor, Generation: s.generation}))
}

func votesByMap(s *suite) {
	refused := node.Reply{Outcome: node.NotAdmitted, Epoch: s.epoch}
	s.want(by("m1", acquire("a", "L1")), refused)
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	s.installMap("m1", 0)
	for _, op := range []node.Op{
		acquire("a", "L1"), acquireWith("a", "L1", ticket("t1", "s1", 10)), confirm("a", "L1", s.base+1), extend("a", "L1", s.base+1, longTTL),
		read("a"), enqueue("a", ticket("t1", "s1", 10)),
	} {
		s.want(op, refused)
		s.want(by("m2", op), refused)
	}
	s.want(by("m1", read("a")), locked(s.base+1, "L1", longTTL))
	s.want(by("m1", confirm("a", "L1", s.base+1)), granted(s.base+1, longTTL))
	s.want(heartbeat("s1", longTTL), outcome(node.Granted))
	s.want(retract("a", "L1", ""), granted(s.base+1, 0))
	s.want(by("m1", acquire("a", "L2")), granted(s.base+2, longTTL))
}

func releasesByMap(s *suite) {
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	s.installMap("m1", 0)
	s.want(release("a", "L1", s.base+1), node.Reply{Outcome: node.NotAdmitted, Epoch: s.epoch})
	s.want(by("m1", read("a")), outcome(node.NotHeld))
	s.wantCounter("a", s.base+1)
	s.want(by("m1", release("a", "L1", s.base+1)), outcome(node.NotHeld))
	s.wantCounter("a", s.base+2)
}

func mapEpochs(s *suite) {
	s.wantStale(s.Node.InstallMap(s.Context(), node.Map{Name: "m1", Epoch: s.epoch - 1}))
	s.wantStale(s.Node.InstallMap(s.Context(), node.Map{Name: "m1", Epoch: s.epoch + 1}))
	if m := s.observe().Marks.Map; m != (node.Map{}) {
		s.Errorf("%+v", m)
	}
	s.installMap("m1", s.base+50)
	marks, err := s.Node.InstallEpoch(s.Context(), s.epoch+1)
	s.must(err)
	want := node.Map{Name: "m1", Epoch: s.epoch, Floor: s.base + 50, Generation: 1}
	if marks.Map != want || s.observe().Marks.Map != want {
		s.Errorf("%+v, want %+v", marks, want)
	}
	s.epoch++
	s.installMap("m2", s.base)
	if m := s.observe().Marks.Map; m != (node.Map{Name: "m2", Epoch: s.epoch, Floor: s.base + 50, Generation: 2}) {
		s.Errorf("%+v", m)
	}
}

func mapFloor(s *suite) {
	floor := s.base + 100
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	s.want(acquire("b", "L2"), granted(s.base+2, longTTL))
	s.want(release("b", "L2", s.base+2), granted(s.base+2, 0))
	s.installMap("m1", floor)
	s.wantHighWater(floor)
	s.wantCounter("a", s.base+1)
	s.wantCounter("b", floor)
	s.wantCounter("c", floor)
	s.want(by("m1", extend("b", "L2", s.base+3, longTTL)), outcome(node.NotHeld))
	s.want(by("m1", acquire("b", "L3")), granted(floor+1, longTTL))
	s.want(by("m1", acquire("c", "L4")), granted(floor+2, longTTL))
	s.want(by("m1", extend("a", "L1", s.base+1, longTTL)), withMeta(granted(s.base+1, longTTL), "meta of L1"))
	s.want(by("m1", release("a", "L1", s.base+1)), granted(s.base+1, 0))
	s.want(by("m1", acquire("a", "L5")), granted(floor+1, longTTL))
}

func receives(s *suite) {
	s.want(acquire("a", "L1"), granted(s.base+1, longTTL))
	s.want(scoped("b", "L2", "one"), granted(s.base+2, longTTL))
	s.installMap("m1", 0)
	moved := []node.CarriedLock{
		{Resource: "a", Counter: s.base + 9, Owner: "L8", Grant: s.base + 8, Remaining: longTTL / 2, TTL: longTTL, Meta: "meta of L8"},
		{Resource: "b"}, {Resource: "c"},
	}
	s.wantErr(node.ErrNotAdmitted, s.Node.Receive(s.Context(), s.epoch, "m2", moved))
	s.wantStale(s.Node.Receive(s.Context(), s.epoch+1, "m1", moved))
	s.want(by("m1", read("a")), locked(s.base+1, "L1", longTTL))
	for range 2 { // again changes nothing
		s.must(s.Node.Receive(s.Context(), s.epoch, "m1", moved))
		half := locked(s.base+8, "L8", longTTL)
		half.Remaining = longTTL / 2
		s.want(by("m1", read("a")), half)
		s.want(by("m1", read("b")), outcome(node.NotHeld))
		s.wantCounter("a", s.base+9)
		s.wantCounter("b", s.base+9) // the high-water mark
	}
	s.want(by("m1", extend("a", "L8", s.base+8, longTTL)), withMeta(granted(s.base+8, longTTL), "meta of L8"))
	s.want(by("m1", scoped("c", "L2", "two")), granted(s.base+10, longTTL)) // L2 has no scope any more
}

func livingServers(s *suite) {
	s.want(heartbeat("s1-m1", longTTL), outcome(node.Granted))
	s.want(acquire("s2", "L1"), granted(s.base+1, longTTL))
	servers, err := s.Node.Servers(s.Context())
	s.must(err)
	servers = slices.DeleteFunc(servers, func(name string) bool { return name == stranger })
	if !slices.Equal(servers, []string{"s1-m1"}) {
		s.Errorf("%q", servers)
	}
}

func admissionsWithMaps(s *suite) {
	s.installMap("m1", s.base+5)
	a := s.bootstrap(s.base)
	a.Map = node.Map{Name: "m2", Epoch: a.Epoch - 3, Floor: s.base + 7, Generation: 9}
	s.install(a)
	if m := s.observe().Marks.Map; m != a.Map {
		s.Errorf("%+v, want %+v", m, a.Map)
	}
	s.want(acquire("a", "L1"), node.Reply{Outcome: node.NotAdmitted, Epoch: s.epoch})
	s.want(by("m2", acquire("a", "L1")), granted(s.base+8, longTTL))
	s.install(s.bootstrap(s.base))
	if m := s.observe().Marks.Map; m != (node.Map{}) {
		s.Errorf("%+v", m)
	}
	s.do(acquire("a", "L1"))
}
