package leases_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/leases"
	"github.com/fencelock/fencelock/lockcore"
)

var w = lockcore.CallerNamed("w")

var begin = time.Unix(1_700_000_000, 0)

func at(d time.Duration) time.Time { return begin.Add(d) }

func ids(list []leases.Lease) (text string) {
	for _, l := range list {
		text += l.ID
	}
	return text
}

func TestALeaseIsHeldUntilItEnds(t *testing.T) {
	var table leases.Table
	table.Put(leases.Lease{ID: "a", Granted: begin}, at(time.Second))
	table.Put(leases.Lease{ID: "b", Granted: begin}, at(2*time.Second))
	table.Put(leases.Lease{ID: "c", Granted: begin}, at(time.Second))
	table.Put(leases.Lease{ID: "c", Granted: at(time.Second)}, at(time.Hour)) // extended
	if l, ok := table.Remove("b"); !ok || l.ID != "b" {
		t.Errorf("removed %+v %t", l, ok)
	}
	if l, ok := table.Remove("b"); ok {
		t.Errorf("removed %+v twice", l)
	}
	if expired := table.Expired(at(time.Second)); len(expired) > 0 || table.Held() != 1 {
		t.Errorf("%q have expired before their grace, %d are held", ids(expired), table.Held())
	}
	if expired := table.Expired(at(time.Second + leases.Grace)); ids(expired) != "a" {
		t.Errorf("%q have expired", ids(expired))
	}
	if expired := table.Expired(at(time.Minute)); len(expired) > 0 {
		t.Errorf("%q have expired twice", ids(expired))
	}
	if l, ok := table.Remove("c"); !ok || !l.Granted.Equal(begin) {
		t.Errorf("an extension changed when the lease was granted: %+v %t", l, ok)
	}
}

// A release or an extension that comes within the grace is in time to tell how
// the lease ended.
func TestTheEndIsToldLate(t *testing.T) {
	var table leases.Table
	for _, id := range []string{"released", "extended"} {
		table.Put(leases.Lease{ID: id}, at(time.Second))
	}
	table.Expired(at(time.Second))
	if _, ok := table.Remove("released"); !ok {
		t.Error("the table has forgotten a lease whose release was under way")
	}
	table.Put(leases.Lease{ID: "extended"}, at(time.Hour))
	if expired := table.Expired(at(time.Minute)); len(expired) > 0 || table.Held() != 1 {
		t.Errorf("%q have expired, %d are held", ids(expired), table.Held())
	}
}

func TestLimit(t *testing.T) {
	var table leases.Table
	reserve := func(want bool, caller lockcore.Caller, now time.Duration) {
		t.Helper()
		if got := table.Reserve(caller, 1, 2, at(now)); got != want {
			t.Errorf("at %s %s is let in: %t, want %t", now, caller.Name(), got, want)
		}
	}
	reserve(true, w, 0)
	reserve(true, w, 0)
	reserve(false, w, 0) // two that are under way leave no room for a third
	reserve(true, lockcore.CallerNamed("other"), 0)
	table.Unreserve(w, 1) // was not granted
	table.Put(leases.Lease{ID: "a", Caller: w, Counts: 1}, at(time.Second))
	table.Unreserve(w, 1)
	reserve(true, w, 0)
	table.Put(leases.Lease{ID: "b", Caller: w, Counts: 1}, at(time.Hour))
	table.Put(leases.Lease{ID: "b", Caller: w, Counts: 1}, at(2*time.Hour)) // extended: counts once
	table.Unreserve(w, 1)
	reserve(false, w, 0)
	table.Put(leases.Lease{ID: "c", Caller: w}, at(time.Hour)) // from before there was a limit
	table.Remove("c")
	table.Remove("no lease")
	reserve(false, w, 0)
	reserve(true, w, time.Second) // a's TTL has passed
	table.Unreserve(w, 1)
	if expired := table.Expired(at(time.Minute)); ids(expired) != "a" {
		t.Errorf("%q have expired", ids(expired))
	}
	table.Remove("b")
	reserve(true, w, 0)
	reserve(true, w, 0)
	reserve(false, w, 0)
}

// A released lease counts until its resources are free; its id frees nothing any more.
func TestWhatStaysTakenCounts(t *testing.T) {
	var table leases.Table
	put := func(id string) {
		table.Put(leases.Lease{ID: id, Caller: w, Resource: id, Counts: 1}, at(time.Hour))
	}
	put("a")
	if l, known := table.Release("a", at(time.Minute), at(0)); !known || l.ID != "a" || table.Held() != 0 {
		t.Errorf("released %+v %t, %d are held", l, known, table.Held())
	}
	table.Remove("a")
	if table.Reserve(w, 1, 1, at(time.Minute-1)) {
		t.Error("its owner has room though it is taken")
	}
	if expired := table.Expired(at(time.Minute)); len(expired) > 0 || !table.Reserve(w, 1, 1, at(time.Minute)) {
		t.Errorf("its owner has no room though it is free; %q have expired", ids(expired))
	}
	table.Unreserve(w, 1)
	for _, release := range []bool{false, true} {
		put("c")
		if release {
			table.Release("c", at(time.Hour), at(0))
		}
		table.Free(table.LimitedOf("c").ID)
		if table.LimitedOf("c").ID != "" || !table.Reserve(w, 1, 1, at(0)) {
			t.Errorf("its owner has no room though a break has freed its resource (released: %t)", release)
		}
		table.Unreserve(w, 1)
	}
	table.Free("no lease")
	put("b")
	if table.Release("b", at(0), at(0)); !table.Reserve(w, 1, 1, at(0)) {
		t.Error("a lease without a minimum hold counts after its release")
	}
}

func TestTheTableIsBounded(t *testing.T) {
	var table leases.Table
	for i := range leases.MaxLeases {
		if !table.Put(leases.Lease{ID: strconv.Itoa(i)}, at(time.Hour)) {
			t.Fatalf("lease %d is not followed", i)
		}
	}
	if table.Put(leases.Lease{ID: "more"}, at(time.Hour)) || table.Held() != leases.MaxLeases {
		t.Errorf("%d leases are followed", table.Held())
	}
	if !table.Put(leases.Lease{ID: "0"}, at(2*time.Hour)) {
		t.Error("an extension is not noted")
	}
	if !table.Put(leases.Lease{ID: "limited", Counts: 1}, at(time.Hour)) {
		t.Error("a limited caller's lease is not counted")
	}
}
