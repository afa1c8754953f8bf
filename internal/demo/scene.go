package demo

import "time"

// scene is a round laid out in time, for whoever draws it.
type scene struct {
	length   time.Duration
	leaseEnd time.Duration // of A's first lease
	lanes    [2]lane
	reads    []mark
	writes   []mark
}

// lane is a worker's part of the scene.
type lane struct {
	who    Actor
	phases []phase
	leases []lease
}

// doing is what a worker does for a while.
type doing int

const (
	running doing = iota
	waiting
	stopped
)

type phase struct {
	from, to time.Duration
	doing    doing
}

// lease is a lease as its holder may believe in it.
type lease struct {
	from, to time.Duration
	token    int64
}

// mark is a moment at which a worker met the account.
type mark struct {
	at      time.Duration
	who     Actor
	balance int64
	refused bool
	read    bool
	lossy   bool // it wrote over what it had not read
}

// stage lays a round out.
func stage(r Round) scene {
	var s scene
	for i, who := range []Actor{WorkerA, WorkerB} {
		s.lanes[i] = layLane(who, r.Events)
	}
	for _, e := range r.Events {
		s.length = max(s.length, e.At)
		s.meet(e)
	}
	s.length += s.length / 10 // room after the last write
	s.findLosses()
	s.clip()
	if a := s.lanes[0].leases; len(a) > 0 {
		s.leaseEnd = a[0].to
	}
	return s
}

// clip cuts off leases that go on after the end.
func (s *scene) clip() {
	for _, l := range s.lanes {
		for i := range l.leases {
			l.leases[i].to = min(l.leases[i].to, s.length)
		}
	}
}

// meet notes an event at the account.
func (s *scene) meet(e Event) {
	m := mark{at: e.At, who: e.Who, balance: e.Balance}
	switch e.Kind {
	case Read:
		m.read = true
		s.reads = append(s.reads, m)
	case Wrote:
		s.writes = append(s.writes, m)
	case Refused:
		m.refused = true
		s.writes = append(s.writes, m)
	}
}

// findLosses marks the writes that did not build on what was there.
func (s *scene) findLosses() {
	there := int64(opening)
	for i := range s.writes {
		m := &s.writes[i]
		if m.refused {
			continue
		}
		m.lossy = m.balance != there+depositOf(m.who)
		there = m.balance
	}
}

func depositOf(who Actor) int64 {
	if who == WorkerA {
		return depositA
	}
	return depositB
}

// layLane follows one worker through the round.
func layLane(who Actor, events []Event) lane {
	l := lane{who: who}
	for _, e := range events {
		if e.Who == who && e.Kind != Ended {
			l.step(e)
		}
	}
	return l
}

func (l *lane) step(e Event) {
	now := l.until(e.At)
	switch e.Kind {
	case Held:
		l.phases = append(l.phases, phase{from: e.At, to: e.At, doing: waiting})
	case Stopped:
		l.phases = append(l.phases, phase{from: e.At, to: e.At, doing: stopped})
	case Started, Continued:
		l.phases = append(l.phases, phase{from: e.At, to: e.At})
	case Acquired:
		if now == waiting {
			l.phases = append(l.phases, phase{from: e.At, to: e.At})
		}
		l.leases = append(l.leases, lease{from: e.At, to: e.At + e.Left, token: e.Token})
	case Released:
		if n := len(l.leases); n > 0 {
			l.leases[n-1].to = min(l.leases[n-1].to, e.At)
		}
	}
}

// until stretches the present phase to an instant, and names it.
func (l *lane) until(at time.Duration) doing {
	if len(l.phases) == 0 {
		return running
	}
	last := &l.phases[len(l.phases)-1]
	last.to = at
	return last.doing
}
