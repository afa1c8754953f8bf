package events

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// story runs a book through a made-up time. now advances by its methods.
type story struct {
	t    *testing.T
	book book
	now  time.Time
	told []string
}

func newStory(t *testing.T) *story {
	t.Helper()
	return &story{t: t, now: time.Unix(1_700_000_000, 0)}
}

func (s *story) hear(kind wire.EventKind, resource string, token int64, ttl time.Duration) {
	s.book.hear(&Event{Kind: kind, Event: wire.Event{Resource: resource, FencingToken: token, TTLMS: ttl.Milliseconds()}}, s.now)
}

func held(resource string, token int64, remaining time.Duration) lockcore.LockState {
	return lockcore.LockState{Resource: resource, Held: true, Token: fencing.Token(token), Holder: "h", Remaining: remaining, TTL: time.Minute}
}

// pass lets time go by; at every tick the nodes show what state says.
func (s *story) pass(d time.Duration, state func(resource string) (lockcore.LockState, error)) {
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(tickPause)
		for l, ok := s.book.next(s.now); ok; l, ok = s.book.next(s.now) {
			seen, err := state(l.resource)
			s.book.looked(l, seen, err, s.now)
		}
		for _, e := range s.book.tick(s.now) {
			s.told = append(s.told, fmt.Sprintf("%s %s %d", e.Kind, e.Resource, e.FencingToken))
			s.book.hear(&e, s.now) // as the hub gives it back
		}
	}
}

func (s *story) tells(want ...string) {
	s.t.Helper()
	if !slices.Equal(s.told, want) {
		s.t.Errorf("told %q, want %q", strings.Join(s.told, ", "), strings.Join(want, ", "))
	}
	s.told = nil
}

func free(resource string) (lockcore.LockState, error) {
	return lockcore.LockState{Resource: resource}, nil
}

func TestExpiryIsFoundOut(t *testing.T) {
	s := newStory(t)
	s.hear(wire.EventGranted, "a", 1, 2*time.Second)
	s.pass(1500*time.Millisecond, free)
	s.tells()
	s.pass(time.Second, free)
	s.tells("expired a 1")
	s.pass(time.Minute, free)
	s.tells()
}

func TestWhatIsToldIsNotFoundOut(t *testing.T) {
	for _, kind := range []wire.EventKind{wire.EventReleased, wire.EventBroken} {
		s := newStory(t)
		s.hear(wire.EventGranted, "a", 1, 2*time.Second)
		s.hear(kind, "a", 1, 0)
		s.pass(time.Minute, free)
		s.tells()
	}
}

func TestBreakOfAnUnknownToken(t *testing.T) {
	s := newStory(t)
	s.hear(wire.EventGranted, "a", 1, 2*time.Second)
	s.hear(wire.EventBroken, "a", 0, 0)
	s.pass(time.Minute, free)
	s.tells()
}

func TestExtendedLeaseDoesNotExpire(t *testing.T) {
	s := newStory(t)
	s.hear(wire.EventGranted, "a", 1, 2*time.Second)
	s.pass(time.Second, free)
	s.hear(wire.EventExtended, "a", 1, 10*time.Second)
	s.pass(9*time.Second, free)
	s.tells()
	s.pass(2*time.Second, free)
	s.tells("expired a 1")
}

// An extension whose word was lost is seen on the nodes at the old deadline.
func TestUntoldExtensionIsSeen(t *testing.T) {
	s := newStory(t)
	s.hear(wire.EventGranted, "a", 1, 2*time.Second)
	until := s.now.Add(5 * time.Second)
	s.pass(10*time.Second, func(r string) (lockcore.LockState, error) {
		if left := until.Sub(s.now); left > 0 {
			return held(r, 1, left), nil
		}
		return free(r)
	})
	s.tells("expired a 1")
}

func TestHandOffAtTheDeadline(t *testing.T) {
	s := newStory(t)
	s.hear(wire.EventGranted, "a", 1, 2*time.Second)
	s.pass(2*time.Second, func(r string) (lockcore.LockState, error) { return held(r, 1, 50*time.Millisecond), nil })
	s.hear(wire.EventGranted, "a", 2, time.Minute)
	s.pass(2*time.Second, func(r string) (lockcore.LockState, error) { return held(r, 2, 50*time.Second), nil })
	s.tells("expired a 1")
}

// The word of a release comes after that of the next grant.
func TestReleaseThatIsToldLate(t *testing.T) {
	s := newStory(t)
	s.hear(wire.EventGranted, "a", 1, time.Minute)
	s.hear(wire.EventGranted, "a", 2, time.Minute)
	s.pass(grace/2, free)
	s.hear(wire.EventReleased, "a", 1, 0)
	s.pass(10*time.Second, free)
	s.tells()
	s.hear(wire.EventReleased, "a", 2, 0)
	s.pass(2*time.Minute, free)
	s.tells()
}

// The words of a lease come from two servers, and the last one first.
func TestGrantThatIsToldAfterItsEnd(t *testing.T) {
	s := newStory(t)
	s.hear(wire.EventReleased, "a", 1, 0)
	s.hear(wire.EventGranted, "a", 1, time.Second)
	s.book.see(held("a", 1, time.Second), true, s.now) // and a first listing was behind
	s.pass(10*time.Second, free)
	s.tells()
}

func TestLeaseThatEndedAndNobodyTold(t *testing.T) {
	s := newStory(t)
	s.hear(wire.EventGranted, "a", 1, time.Minute)
	s.hear(wire.EventGranted, "a", 3, time.Minute)
	s.pass(10*time.Second, free)
	s.tells("ended a 1")
}

// A listing finds a lease of another server whose word was lost, and that it is gone.
func TestListing(t *testing.T) {
	s := newStory(t)
	s.book.see(held("old", 1, time.Minute), true, s.now)
	s.pass(time.Second, free)
	s.tells()

	began := s.now
	s.pass(tickPause, free)
	s.book.see(held("old", 1, time.Minute), false, s.now)
	s.book.see(held("new", 2, time.Minute), false, s.now)
	s.book.swept(began, s.now)
	s.pass(2*time.Second, func(r string) (lockcore.LockState, error) { return held(r, 0, 0), nil })
	s.tells("granted new 2")

	began = s.now
	s.pass(tickPause, free)
	s.book.swept(began, s.now) // shows nothing any more
	s.pass(2*time.Second, free)
	slices.Sort(s.told)
	s.tells("ended new 2", "ended old 1")
}

// A listing that is behind brings nothing back to life, and tells nothing that
// is on its way.
func TestListingIsBehind(t *testing.T) {
	s := newStory(t)
	s.hear(wire.EventGranted, "a", 1, time.Minute)
	s.hear(wire.EventReleased, "a", 1, 0)
	s.book.see(held("a", 1, time.Minute), false, s.now)
	s.book.see(held("b", 2, time.Minute), false, s.now)
	s.pass(grace/2, free)
	s.hear(wire.EventGranted, "b", 2, time.Minute)
	s.pass(10*time.Second, free)
	s.tells()
}

func TestLookThatFailsIsRepeated(t *testing.T) {
	s := newStory(t)
	s.hear(wire.EventGranted, "a", 1, time.Second)
	away := errors.New("no quorum")
	s.pass(20*time.Second, func(string) (lockcore.LockState, error) { return lockcore.LockState{}, away })
	s.tells()
	s.pass(2*time.Second, free)
	s.tells("expired a 1")
}

func TestBookIsBounded(t *testing.T) {
	s := newStory(t)
	for i := range int64(maxFollowed + 1000) {
		s.hear(wire.EventGranted, fmt.Sprint("r", i), 1, time.Minute)
	}
	for i := range int64(maxEnded + 1000) {
		s.hear(wire.EventReleased, fmt.Sprint("x", i), 1, 0)
	}
	for i := range int64(maxEnded + 1000) {
		s.hear(wire.EventGranted, fmt.Sprint("r", i), 2, time.Minute)
	}
	if s.book.held.Len() > maxFollowed || s.book.ended.Len() > maxEnded || s.book.missing.Len() > maxEnded {
		t.Errorf("%d followed, %d ended, %d missing", s.book.held.Len(), s.book.ended.Len(), s.book.missing.Len())
	}
	s.pass(2*forgotten, free)
	if s.book.ended.Len() > 0 || s.book.missing.Len() > 0 {
		t.Errorf("%d ended and %d missing are kept", s.book.ended.Len(), s.book.missing.Len())
	}
	s.book.forget(s.now.Add(time.Minute))
	if s.book.held.Len() > 0 {
		t.Errorf("%d are kept although nobody listens", s.book.held.Len())
	}
}

// Who releases a lease is known by its token alone, and the event of the next
// lease may come first.
func TestHoldersAreNamed(t *testing.T) {
	s := newStory(t)
	for token, holder := range []string{1: "w1", 2: "w2"} {
		s.book.hear(&Event{Kind: wire.EventGranted, Event: wire.Event{Resource: "a", Holder: holder, FencingToken: int64(token), TTLMS: 1000}}, s.now)
	}
	s.hear(wire.EventExtended, "a", 2, time.Second) // by a server that does not know the holder
	for _, released := range []struct {
		token  int64
		holder string
	}{{1, "w1"}, {2, "w2"}, {3, ""}} {
		e := Event{Kind: wire.EventReleased, Event: wire.Event{Resource: "a", FencingToken: released.token}}
		if s.book.hear(&e, s.now); e.Holder != released.holder {
			t.Errorf("token %d is %q's, want %q", released.token, e.Holder, released.holder)
		}
	}
}
