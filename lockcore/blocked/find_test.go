package blocked

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// source has the state of locks at the time of the listing, and their state when they are read again.
type source struct {
	listed, now map[string]lockcore.LockState
	page        int // locks of a page; 0 for all on one
	err         error
}

func (s source) List(_ context.Context, req lockcore.ListRequest) (page lockcore.LockPage, err error) {
	var names []string
	for name, lock := range s.listed {
		if lock.Held && name > req.Cursor && (req.Show == nil || req.Show(name)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for i, name := range names {
		if s.page > 0 && i == s.page {
			page.NextCursor = names[i-1]
			break
		}
		page.Locks = append(page.Locks, s.listed[name])
	}
	return page, s.err
}

func (s source) Inspect(_ context.Context, resource string) (lockcore.LockState, error) {
	lock := s.now[resource]
	lock.Resource = resource
	return lock, nil
}

// still is a source in which no lock changes.
func still(locks ...lockcore.LockState) source {
	return source{listed: byName(locks...), now: byName(locks...)}
}

func find(t *testing.T, s source, q Question) Report {
	t.Helper()
	q.Caller = lockcore.Everyone
	r, err := Find(t.Context(), s, q)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// names returns the resources of a chain, in its order.
func names(chain []Party) (names []string) {
	for _, party := range chain {
		names = append(names, party.Holder)
	}
	return names
}

var three = []lockcore.LockState{held("x", "a", "b"), held("y", "b", "c", "d"), held("z", "c", "a")}

func TestFind(t *testing.T) {
	free := lockcore.LockState{Resource: "free", Waiting: 1, Waiters: []lockcore.Waiter{{Holder: "q"}}}
	chain := still(held("x", "a", "b"), held("y", "b", "c"), held("z", "c", "d"), held("other", "e"), held("bare", "", "c"), free)
	for _, c := range []struct {
		name      string
		from      source
		lock      bool
		chain     []string
		deadlocks []string
	}{
		{"z", chain, true, []string{"c", "b", "a"}, nil},
		{"d", chain, false, []string{"d", "c", "b", "a"}, nil},
		{"a", chain, false, []string{"a"}, nil},
		{"bare", chain, true, nil, nil},
		{"free", chain, true, nil, nil},
		{"s", still(held("s#slot2", "b", "c"), held("s#slot10", "a", "c"), held("sx", "d")), true, []string{"b", "a"}, nil},
		{"unknown", chain, false, nil, nil},
		{"", chain, false, []string{"b", "c", "d", "a"}, nil},
		{"x", still(three...), true, []string{"a", "c", "b"}, []string{"[a b c]"}},
		{"d", still(three...), false, []string{"d", "b", "a", "c"}, []string{"[a b c]"}},
		{"e", still(append(three, held("w", "e"))...), false, []string{"e"}, nil},
		{"", still(append(three, held("w", "e"))...), false, []string{"b", "c", "a", "d"}, []string{"[a b c]"}},
	} {
		for _, size := range []int{0, 1} {
			c.from.page = size
			r := find(t, c.from, Question{Name: c.name})
			got, deadlocks := names(r.Chain), membersOf(r.Deadlocks)
			if c.name == "" { // the order among waits of the same age is theirs
				slices.Sort(got)
				slices.Sort(c.chain)
			}
			if (r.Locks != nil) != c.lock || !slices.Equal(got, c.chain) || !slices.Equal(deadlocks, c.deadlocks) || r.Truncated {
				t.Errorf("%q: lock %+v, chain %v, deadlocks %v", c.name, r.Locks, got, deadlocks)
			}
		}
	}
	if r := find(t, chain, Question{}); r.Unlabelled != 1 {
		t.Errorf("%d unlabelled", r.Unlabelled)
	}
}

func TestTheLongestWaitIsFirst(t *testing.T) {
	from := still(held("x", "z", "b", "a", "d", "c"), held("y", "z", "d"))
	if got := names(find(t, from, Question{}).Chain); !slices.Equal(got, []string{"b", "a", "d", "c", "z"}) {
		t.Errorf("%v", got)
	}
}

// The waits of a circle may have been read at different times. It is a deadlock only if all of them are still there
// when they are read again.
func TestWhatHasChangedIsNoDeadlock(t *testing.T) {
	for name, change := range map[string]lockcore.LockState{
		"the lease has ended":        {Resource: "x", Waiters: held("x", "a", "b").Waiters},
		"another lease has followed": {Resource: "x", Held: true, Holder: "a", Token: 8, Waiters: held("x", "a", "b").Waiters},
		"the wait has ended":         held("x", "a"),
		"another wait has followed":  {Resource: "x", Held: true, Holder: "a", Token: 7, Waiters: []lockcore.Waiter{{Holder: "b", WaitingFor: time.Millisecond}}},
	} {
		s := still(three...)
		s.now["x"] = change
		if r := find(t, s, Question{}); len(r.Deadlocks) > 0 || len(r.Chain) != 4 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// A resource that the caller may not read is treated as if it did not exist: its name is not shown, and it does not
// link a chain.
func TestHiddenResources(t *testing.T) {
	show := func(resource string) bool { return !strings.HasPrefix(resource, "y") }
	r := find(t, still(three...), Question{Name: "x", Show: show})
	if got := names(r.Chain); r.Locks == nil || !slices.Equal(got, []string{"a", "c"}) || len(r.Deadlocks) > 0 {
		t.Errorf("%v, %+v", got, r)
	}
	for _, party := range r.Chain {
		if strings.Contains(fmt.Sprint(party), "y") {
			t.Errorf("%+v shows a hidden resource", party)
		}
	}
	if r := find(t, still(three...), Question{Name: "y", Show: show}); r.Locks != nil || r.Chain != nil {
		t.Errorf("a hidden name: %+v", r)
	}
}

func TestBounds(t *testing.T) {
	many := make([]lockcore.LockState, maxHolders+2)
	for i := range many {
		many[i] = held(fmt.Sprint("r", i), fmt.Sprint("h", i), fmt.Sprint("h", i+1))
	}
	if r := find(t, still(many...), Question{Name: fmt.Sprint("h", len(many))}); !r.Truncated || len(r.Chain) != maxHolders {
		t.Errorf("%d holders, truncated %t", len(r.Chain), r.Truncated)
	}
	long := held("x", "a", "b")
	long.Waiting = 200
	if r := find(t, still(long), Question{Name: "b"}); !r.Truncated {
		t.Error("a part of a queue is not truncated")
	}
	if r, err := Find(t.Context(), listForever{}, Question{}); err != nil || !r.Truncated {
		t.Errorf("an endless list: %+v, %v", r, err)
	}
}

// listForever always has one more page of MaxPage locks.
type listForever struct{ source }

func (listForever) List(_ context.Context, req lockcore.ListRequest) (lockcore.LockPage, error) {
	page := lockcore.LockPage{NextCursor: req.Cursor + "."}
	for i := range lockcore.MaxPage {
		page.Locks = append(page.Locks, held(fmt.Sprint(req.Cursor, i), "a"))
	}
	return page, nil
}

func TestAnErrorOfTheSource(t *testing.T) {
	s := still(three...)
	s.err = errors.New("no quorum")
	if _, err := Find(t.Context(), s, Question{Name: "x"}); !errors.Is(err, s.err) {
		t.Error(err)
	}
}
