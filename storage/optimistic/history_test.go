package optimistic

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica/storetest"
)

// weakness is a defect of a service, or of a server's access to it.
type weakness int

const (
	sound       weakness = iota
	keepsOrigin          // data that were restored have the earlier origin
	trusts               // a server does not look for the entries that it has seen
	judgesNone           // a conflict is not noticed
	readsOld             // the head is read as the server's member has it, which lags behind
	endsEarly            // rows end before their time
	keepsEnded           // a commit leaves what it found ended, which others may still find
)

// member is a server's access to the service, through a member of the service that may lag behind.
type member struct {
	*memory

	weak    weakness
	until   time.Time // it delivers no change before
	head    string    // as it is known here
	version int64
}

func (m *member) Follow(ctx context.Context, mirror *Mirror) error {
	at, went, err := m.loadInto(mirror)
	if err != nil {
		return err
	}
	now, err := mirror.await(ctx, func(*state) bool { return true })
	if err != nil {
		return err
	}
	m.know(now.rawHead, now.headVersion)
	for {
		m.mu.Lock()
		if went != m.went {
			m.mu.Unlock()
			return errBroken // it was restored
		}
		news, changed, late := m.log[at:], m.changed, time.Until(m.until)
		m.mu.Unlock()
		if len(news) > 0 && late > 0 {
			select {
			case <-time.After(late):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for _, c := range news {
			if err := mirror.Apply(c); err != nil {
				return err
			}
			if c.Head != nil {
				m.know(*c.Head, c.Version)
			}
		}
		if at += len(news); len(news) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *member) know(head string, version int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.head, m.version = head, version
}

func (m *member) Head(ctx context.Context) (string, int64, error) {
	if m.weak != readsOld {
		return m.memory.Head(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.head, m.version, nil
}

// ensemble is the service with its servers.
type ensemble struct {
	*memory

	weak    weakness
	saved   saved
	members []*member
	open    []*Store
	rand    *rand.Rand
	shared  storetest.Shared
}

func newEnsemble(weak weakness, random *rand.Rand) *ensemble {
	e := &ensemble{memory: newMemory(), weak: weak, rand: random}
	e.deaf, e.early, e.keeps = weak == judgesNone, weak == endsEarly, weak == keepsEnded
	e.saved = e.save()
	e.shared = storetest.Shared{Now: time.Now, Pass: time.Sleep, Disturb: e.disturb, Save: func() { e.saved = e.save() }}
	e.start()
	return e
}

// start starts two servers.
func (e *ensemble) start() {
	e.members, e.open, e.shared.Servers = nil, nil, nil
	for range 2 {
		m := &member{memory: e.memory, weak: e.weak}
		s := New(m, Options{Pause: time.Millisecond})
		s.mirror.mu.Lock()
		s.mirror.trusting = e.weak == trusts
		s.mirror.mu.Unlock()
		e.members, e.open, e.shared.Servers = append(e.members, m), append(e.open, s), append(e.shared.Servers, s)
	}
}

func (e *ensemble) stop() {
	for _, s := range e.open {
		_ = s.Close()
	}
}

// disturb loses the next commit or its reply, or makes a member lag behind, so that the commits of its server meet
// those of others.
func (e *ensemble) disturb(r *rand.Rand) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch r.IntN(4) {
	case 0:
		e.lost = errBroken
	case 1:
		e.dropped = errBroken
	default:
		e.members[r.IntN(len(e.members))].until = time.Now().Add(time.Duration(r.IntN(400)) * time.Millisecond)
	}
}

// restoreSnapshot does what a restore of etcd does: all servers and members start again, and the data have another
// origin.
func (e *ensemble) restoreSnapshot() {
	e.stop()
	e.restore(e.saved)
	if e.weak != keepsOrigin {
		e.origin += "'"
	}
	e.start()
}

// loseTail removes the end of a log that running servers have read.
func (e *ensemble) loseTail() { e.restore(e.saved) }

// loseTailUnseen does the same in a way that the versions do not show.
func (e *ensemble) loseTailUnseen() {
	to, now := e.saved, e.save()
	to.version, to.wrote = now.version, now.wrote
	e.restore(to)
}

// loseEntries does what an operator does who deletes a part of the log: its beginning, its end or all of it. The
// servers run meanwhile, or start afterwards.
func (e *ensemble) loseEntries(stopped bool) {
	h, _ := decodeHead(e.save().head)
	from, to, half := h.first, h.last, (h.first+h.last)/2
	switch e.rand.IntN(3) {
	case 0:
		from = half
	case 1:
		to = half
	}
	if stopped {
		e.stop()
		defer e.start()
	}
	e.remove(from, to)
}

// loseHead deletes the head in the same way.
func (e *ensemble) loseHead(stopped bool) {
	if stopped {
		e.stop()
		defer e.start()
	}
	e.removeHead()
}

// losses are the ways in which commits are lost.
var losses = map[string]func(*ensemble){
	"entries that are deleted, and servers that run":   func(e *ensemble) { e.loseEntries(false) },
	"entries that are deleted, and servers that start": func(e *ensemble) { e.loseEntries(true) },
	"a head that is deleted, and servers that run":     func(e *ensemble) { e.loseHead(false) },
	"a head that is deleted, and servers that start":   func(e *ensemble) { e.loseHead(true) },
	"a restored snapshot":                              (*ensemble).restoreSnapshot,
	"a log without its end":                            (*ensemble).loseTail,
	"versions that go on":                              (*ensemble).loseTailUnseen,
}

func history(t *testing.T, seed uint64, loss func(*ensemble), weak weakness) (leases int, err error) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		random := rand.New(rand.NewPCG(seed, 17))
		e := newEnsemble(weak, random)
		defer e.stop()
		e.shared.Lose = func() {
			e.mu.Lock()
			e.lost, e.dropped = nil, nil
			e.mu.Unlock()
			loss(e)
			time.Sleep(time.Second) // every server follows it again
		}
		leases, err = storetest.History(random, &e.shared, 100)
	})
	return leases, err
}

// Several servers keep their promises through commits that conflict, members that lag behind, lost replies, and lost
// commits.
func TestServersThatShareAService(t *testing.T) { shareAService(t, 5_000) }

func TestSoakServersThatShareAService(t *testing.T) {
	testenv.Long(t, "a history of servers on one service that is one in a hundred thousand leases")
	shareAService(t, 100_000)
}

// shareAService runs random histories for each loss until n leases were granted.
func shareAService(t *testing.T, leases int) {
	t.Helper()
	testenv.Computes(t)
	for name, loss := range losses {
		t.Run(name, func(t *testing.T) {
			total, seed := 0, uint64(0)
			for ; total < leases; seed++ {
				grants, err := history(t, seed, loss, sound)
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				total += grants
			}
			t.Logf("%d leases in %d histories", total, seed)
		})
	}
}

// releasedThenLooked is the seed of a history. In it a lease is released on a server that found it expired, and is
// looked up on one that saw it later.
const releasedThenLooked = 29871

// A row that one server found ended has ended for the others. TestAnEndIsTheSameForAll has only the steps of this.
func TestReleasedThenLooked(t *testing.T) {
	for name, loss := range losses {
		if grants, err := history(t, releasedThenLooked, loss, sound); err != nil || grants == 0 {
			t.Errorf("%s: %d leases, %v", name, grants, err)
		}
	}
}

// The test notices each mutant of a service.
func TestServicesThatDoWrong(t *testing.T) {
	for name, c := range map[string]struct {
		weak weakness
		loss string
		seed uint64 // the first
	}{
		"no origin in the incarnation":    {keepsOrigin, "a restored snapshot", 0},
		"what was seen is not looked for": {trusts, "versions that go on", 0},
		"a gap in the log":                {trusts, "entries that are deleted, and servers that start", 0},
		"a conflict that is not noticed":  {judgesNone, "a restored snapshot", 0},
		"a read that is not linearizable": {readsOld, "a log without its end", 0},
		"rows that end before their time": {endsEarly, "a log without its end", 0},
		"what has ended is kept":          {keepsEnded, "a log without its end", releasedThenLooked},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := c.seed; seed < c.seed+300; seed++ {
				if _, err := history(t, seed, losses[c.loss], c.weak); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("it was not noticed")
		})
	}
}
