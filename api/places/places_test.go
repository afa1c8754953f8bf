package places_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/api/places"
)

// table is a Table under test, with what it forgot.
type table struct {
	*places.Table
	t         *testing.T
	forgotten []string
}

func newTable(t *testing.T, most int) *table {
	t.Helper()
	return &table{Table: places.New(most), t: t}
}

// request is one of a caller, with a share (waiters 0) or a limit.
func (tab *table) request(caller, key string, waiters int) places.Request {
	return places.Request{Caller: caller, Key: key, Waiters: waiters, Resources: 1, Places: 1, Forget: func() {
		tab.forgotten = append(tab.forgotten, caller+"/"+key)
	}}
}

func (tab *table) enter(r places.Request) (leave func(lost bool)) {
	tab.t.Helper()
	leave, err := tab.Enter(r)
	if err != nil {
		tab.t.Fatalf("%s/%s: %v", r.Caller, r.Key, err)
	}
	return leave
}

// wants compares what was forgotten since the last call, and what is kept.
func (tab *table) wants(kept int, forgotten ...string) {
	tab.t.Helper()
	if got := tab.Kept(); got != kept || !slices.Equal(tab.forgotten, forgotten) {
		tab.t.Errorf("%d places kept and %q forgotten, want %d and %q", got, tab.forgotten, kept, forgotten)
	}
	tab.forgotten = nil
}

func TestKeptPlacesCountAgainstTheLimit(t *testing.T) {
	tab := newTable(t, 100)
	for i := range 4 {
		tab.enter(tab.request("w", fmt.Sprint(i), 2))(true)
	}
	tab.wants(2, "w/0", "w/1")
	again := tab.enter(tab.request("w", "2", 2)) // has its own place
	tab.wants(1)
	other := tab.enter(tab.request("w", "", 2))
	tab.wants(0, "w/3")
	if _, err := tab.Enter(tab.request("w", "4", 2)); !errors.As(err, new(*places.LimitError)) {
		t.Errorf("beyond the limit: %v", err)
	}
	other(true) // without a key
	again(false)
	tab.wants(0)
}

func TestOldestPlaceOfAllMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(t, 4)
		for _, caller := range []string{"a", "b", "", "a"} {
			time.Sleep(time.Second)
			tab.enter(tab.request(caller, "k"+fmt.Sprint(time.Now().Second()), 10))(true)
		}
		tab.wants(4)
		tab.enter(tab.request("c", "", 10))
		tab.wants(3, "a/k1")
		tab.enter(places.Request{Caller: "c", Waiters: 10, Resources: 1, Places: 2})
		tab.wants(1, "b/k2", "/k3")
		tab.enter(tab.request("c", "", 10))
		tab.wants(0, "a/k4")
		if _, err := tab.Enter(tab.request("d", "", 10)); !errors.Is(err, places.ErrFull) {
			t.Errorf("beyond all places: %v", err)
		}
	})
}

// A caller without a limit of its own has half of what others leave, so that there is always
// room for one more caller.
func TestShares(t *testing.T) {
	tab := newTable(t, 16)
	fill := func(caller string) (n int) {
		for ; ; n++ {
			if _, err := tab.Enter(tab.request(caller, "", 0)); err != nil {
				if !errors.As(err, new(*places.LimitError)) {
					t.Errorf("%s: %v", caller, err)
				}
				return n
			}
		}
	}
	if got := []int{fill("a"), fill("b"), fill("c"), fill("d")}; !slices.Equal(got, []int{8, 4, 2, 1}) {
		t.Errorf("shares are %v", got)
	}
	for i := range 3 { // kept places count, too
		tab := newTable(t, 4)
		tab.enter(tab.request("a", fmt.Sprint(i), 0))(true)
		tab.enter(tab.request("a", fmt.Sprint(i+1), 0))(true)
		tab.enter(tab.request("a", fmt.Sprint(i+2), 0))(true)
		tab.wants(2, "a/"+fmt.Sprint(i))
	}
	tab = newTable(t, 4)
	for range 4 { // without access control there are no callers to share among
		tab.enter(tab.request("", "", 0))
	}
}

func TestKeptPlacesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(t, 4)
		tab.enter(tab.request("a", "1", 3))(true)
		tab.enter(tab.request("a", "2", 3))(true)
		tab.enter(tab.request("a", "2", 3))(false) // it has its lease
		tab.wants(1)
		tab.enter(tab.request("a", "3", 3))(true)
		tab.Drop("a", "3") // it was cancelled
		tab.Drop("a", "unknown")
		tab.Drop("unknown", "3")
		tab.wants(1)
		time.Sleep(places.KeptFor + time.Millisecond)
		tab.wants(0)
	})
}
