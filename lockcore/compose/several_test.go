package compose_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/compose"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/servicetest"
)

// fake locks every resource in memory and notes the calls. A test can make single calls fail.
type fake struct {
	ring  *keyring.Ring
	mu    sync.Mutex
	locks map[string]lock
	last  fencing.Token
	calls []string
	fail  map[string]error // by call, as it is noted
}

type lock struct {
	owner string
	token fencing.Token
	until time.Time
	ttl   time.Duration
}

func newFake(t *testing.T) (*fake, servicetest.ByID) {
	t.Helper()
	ring, err := keyring.New(make([]byte, node.MinSecretBytes))
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{ring: ring, locks: make(map[string]lock), fail: make(map[string]error)}
	return f, servicetest.ByID{Calls: compose.New(lockcore.Limits{}.WithDefaults(), f, time.Second)}
}

func (f *fake) At(_ context.Context, _ string, use func(compose.Resource) error) error { return use(f) }
func (f *fake) Rings() []*keyring.Ring                                                 { return []*keyring.Ring{f.ring} }
func (*fake) ReadRings(context.Context) error                                          { return nil }
func (f *fake) Ring(*redlock.Grant) *keyring.Ring                                      { return f.ring }
func (*fake) RetractLater(*redlock.Grant)                                              {}

func (f *fake) Retract(p *redlock.Grant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.call("retract", p.ID.Resource)
	delete(f.locks, p.ID.Resource)
}

func (f *fake) call(what, resource string) error {
	f.calls = append(f.calls, what+" "+resource)
	return f.fail[what+" "+resource]
}

func (f *fake) owns(id keyring.LeaseID) bool {
	l := f.locks[id.Resource]
	return l.owner == id.Owner && time.Now().Before(l.until)
}

func (f *fake) Acquire(_ context.Context, req *lockcore.Request) (*redlock.Grant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("acquire", req.Resource); err != nil {
		return nil, err
	}
	owner := f.ring.Owners(req.Caller.Name(), req.IdempotencyKey+req.Scope)[0]
	l, existing := f.locks[req.Resource], false
	switch {
	case time.Now().After(l.until):
		f.last++
		l = lock{owner, f.last, time.Now().Add(req.TTL), req.TTL}
		f.locks[req.Resource] = l
	case l.owner == owner && req.IdempotencyKey != "":
		existing = true
	default:
		return nil, &lockcore.HeldError{Resource: req.Resource, Remaining: time.Until(l.until)}
	}
	id := keyring.LeaseID{
		Resource: req.Resource, Owner: owner, Token: l.token, Acquired: time.Now().Truncate(time.Millisecond),
		Terms: keyring.Terms{MinHold: req.MinHold, MaxHold: req.MaxHold},
	}
	if req.IdempotencyKey != "" {
		id.Attempt = "attempt"
	}
	lease := lockcore.Lease{Resource: req.Resource, Token: l.token, TTL: l.ttl, Validity: time.Until(l.until), Existing: existing}
	return &redlock.Grant{ID: id, Lease: lease, At: time.Now()}, nil
}

func (f *fake) Extend(_ context.Context, id keyring.LeaseID, ttl time.Duration) (lockcore.Lease, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("extend", id.Resource); err != nil {
		return lockcore.Lease{}, err
	}
	if !f.owns(id) {
		return lockcore.Lease{}, lockcore.ErrNotHeld
	}
	f.locks[id.Resource] = lock{id.Owner, id.Token, time.Now().Add(ttl), ttl}
	return lockcore.Lease{Resource: id.Resource, Token: id.Token, TTL: ttl, Validity: ttl}, nil
}

func (f *fake) Renew(_ context.Context, id keyring.LeaseID, token fencing.Token, _ time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("renew", id.Resource); err != nil {
		return err
	}
	l := f.locks[id.Resource]
	l.token = token
	f.locks[id.Resource] = l
	return nil
}

func (f *fake) Release(_ context.Context, id keyring.LeaseID, keep time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("release", id.Resource); err != nil {
		return err
	}
	if !f.owns(id) {
		return lockcore.ErrNotHeld
	}
	l := f.locks[id.Resource]
	l.until, l.owner = time.Now().Add(keep), ""
	f.locks[id.Resource] = l
	return nil
}

func (f *fake) Lease(_ context.Context, id keyring.LeaseID) (lockcore.Lease, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("look", id.Resource); err != nil {
		return lockcore.Lease{}, err
	}
	if !f.owns(id) {
		return lockcore.Lease{}, lockcore.ErrNotHeld
	}
	l := f.locks[id.Resource]
	return lockcore.Lease{Resource: id.Resource, Token: l.token, TTL: l.ttl, Validity: time.Until(l.until)}, nil
}

func (*fake) EndOf(context.Context, keyring.LeaseID) (lockcore.End, error) {
	return lockcore.EndUnknown, nil
}

func (*fake) Inspect(context.Context, string) (lockcore.LockState, error) {
	return lockcore.LockState{}, nil
}
func (*fake) Break(context.Context, string, fencing.Token) error { return nil }

func (f *fake) Cancel(_ context.Context, req *lockcore.Request) (fencing.Token, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return 0, f.call("cancel", req.Resource)
}
func (*fake) ForgetPlace(context.Context, *lockcore.Request) error       { return nil }
func (*fake) HeldByKey(context.Context, *lockcore.Request) (bool, error) { return false, nil }

// free returns the resources that nobody holds.
func (f *fake) free(resources ...string) (free []string) {
	for _, r := range resources {
		if !time.Now().Before(f.locks[r].until) {
			free = append(free, r)
		}
	}
	return free
}

var errNoQuorum = &lockcore.QuorumError{Quorum: 2}

// A lease of a, b and c is acquired, and one call for one part fails. Each case has the error, the resources that are
// free afterwards, and what other callers saw.
func TestAllOrNone(t *testing.T) {
	three := lockcore.Request{Resources: []string{"c", "a", "b"}, TTL: 10 * time.Second}
	for name, c := range map[string]struct {
		key   string
		fails string
		err   error // of that call
		then  string
		want  error
		free  string
		saw   string // calls after the acquires
	}{
		"all are taken in the order of their names": {then: "acquire", saw: "acquire a, acquire b, acquire c"},
		"the last is held":                          {fails: "acquire c", err: &lockcore.HeldError{Resource: "c"}, then: "acquire", want: lockcore.ErrHeld, free: "abc"},
		"the last has no quorum":                    {fails: "acquire c", err: errNoQuorum, then: "acquire", want: lockcore.ErrNoQuorum, free: "abc"},
		"under a key the votes are retracted":       {key: "k", fails: "acquire c", err: errNoQuorum, then: "acquire", want: lockcore.ErrNoQuorum, free: "abc", saw: "acquire a, acquire b, acquire c, retract a, retract b"},
		"a release":                                 {then: "release", free: "abc"},
		"a release without a quorum of one part":    {fails: "release b", err: errNoQuorum, then: "release", want: lockcore.ErrNoQuorum, free: "ac"},
		"a release of which one part has ended":     {fails: "release b", err: lockcore.ErrNotHeld, then: "release", want: lockcore.ErrNotHeld, free: "ac"},
		"an extend":                                 {then: "extend"},
		"an extend of which one part has ended":     {fails: "extend b", err: lockcore.ErrNotHeld, then: "extend", want: lockcore.ErrNotHeld, free: "abc"},
		"an extend without a quorum of one part":    {fails: "extend b", err: errNoQuorum, then: "extend", want: lockcore.ErrNoQuorum},
		"an extend by the last TTL":                 {then: "extend again"},
		"the same, of which one part has ended":     {fails: "look b", err: lockcore.ErrNotHeld, then: "extend again", want: lockcore.ErrNotHeld, free: "abc"},
		"the same, and the end is not certain":      {fails: "look b, release c", err: lockcore.ErrNotHeld, then: "extend again", want: lockcore.ErrNotHeld, free: "ab"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, s := newFake(t)
				req := three
				req.IdempotencyKey = c.key
				failing := func() {
					for call := range strings.SplitSeq(c.fails, ", ") {
						f.fail[call] = c.err
					}
				}
				if c.then == "acquire" {
					failing()
				}
				lease, err := s.Acquire(t.Context(), req)
				failing()
				switch c.then {
				case "release":
					err = s.Release(t.Context(), lease.ID)
				case "extend":
					_, err = s.Extend(t.Context(), lease.ID, 20*time.Second)
				case "extend again":
					_, err = s.Extend(t.Context(), lease.ID, 0)
				}
				if !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				if free := strings.Join(f.free("a", "b", "c"), ""); free != c.free {
					t.Errorf("free are %q, want %q", free, c.free)
				}
				if saw := strings.Join(f.calls, ", "); c.saw != "" && saw != c.saw {
					t.Errorf("calls: %s; want %s", saw, c.saw)
				}
			})
		})
	}
}

// An earlier request under the key left a part behind. That part gets a new token: the id of the earlier lease, which
// has ended, must not end a part of the new one (rule 25).
func TestALeftPartGetsANewToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newFake(t)
		req := lockcore.Request{Resources: []string{"a", "b"}, TTL: 10 * time.Second, IdempotencyKey: "k"}
		first, err := s.Acquire(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		delete(f.locks, "b") // it was broken
		second, err := s.Acquire(t.Context(), req)
		if err != nil || second.Existing {
			t.Fatalf("%+v, %v", second, err)
		}
		if second.Parts[0].Token <= first.Parts[0].Token {
			t.Errorf("a had token %d, and has %d in the next lease", first.Parts[0].Token, second.Parts[0].Token)
		}
		again, err := s.Acquire(t.Context(), req)
		if err != nil || !again.Existing || fmt.Sprint(again.Parts) != fmt.Sprint(second.Parts) {
			t.Errorf("a repeat gets %+v, %v", again, err)
		}
	})
}

// While a request waits for further parts, it keeps those that it has: each gets the whole TTL again whenever a third
// of it has passed, however many others were taken since.
func TestPartsAreKeptWhileOthersAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFake(t)
		slow := slowly{fake: f, takes: 2800 * time.Millisecond}
		s := servicetest.ByID{Calls: compose.New(lockcore.Limits{}.WithDefaults(), slow, time.Second)}
		names := []string{"a", "b", "c", "d", "e"}
		lease, err := s.Acquire(t.Context(), lockcore.Request{Resources: names, TTL: 9 * time.Second, Wait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if lease.Validity < 8*time.Second || len(f.free(names...)) > 0 {
			t.Errorf("valid for %s, and free are %v", lease.Validity, f.free(names...))
		}
		if n := len(slices.DeleteFunc(slices.Clone(f.calls), func(call string) bool { return call != "extend a" })); n < 3 {
			t.Errorf("the first part was extended %d times in 14 s", n)
		}
	})
}

// slowly is a fake in which each acquire takes some time.
type slowly struct {
	*fake
	takes time.Duration
}

func (s slowly) At(_ context.Context, _ string, use func(compose.Resource) error) error {
	return use(s)
}

func (s slowly) Acquire(ctx context.Context, req *lockcore.Request) (*redlock.Grant, error) {
	time.Sleep(s.takes)
	return s.fake.Acquire(ctx, req)
}
