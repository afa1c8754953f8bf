package activity_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/activity"
)

func at(minute, second int) time.Time {
	return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(minute)*time.Minute + time.Duration(second)*time.Second)
}

// total sums what a summary has of its minutes.
func total(s activity.Summary) (granted, waited, refused int64) {
	for _, m := range s.Minutes {
		granted, waited, refused = granted+m.Granted, waited+m.Waited, refused+m.Refused
	}
	return granted, waited, refused
}

func TestMinutes(t *testing.T) {
	var l activity.Log
	l.Granted(at(0, 0), 1)
	l.Granted(at(0, 59), 2)
	l.Granted(at(1, 0), 4)
	l.Found(at(1, 0), "a", 0)
	l.Refused(at(59, 0))
	s := l.Summary(at(59, 59), nil)
	if len(s.Minutes) != activity.Minutes || !s.Minutes[0].Start.Equal(at(0, 0)) || !s.Minutes[59].Start.Equal(at(59, 0)) {
		t.Fatalf("%d minutes from %s", len(s.Minutes), s.Minutes[0].Start)
	}
	if s.Minutes[0].Granted != 3 || s.Minutes[1].Granted != 4 || s.Minutes[1].Waited != 1 || s.Minutes[59].Refused != 1 {
		t.Errorf("minutes %+v", s.Minutes)
	}
	if granted, _, _ := total(l.Summary(at(60, 0), nil)); granted != 4 {
		t.Errorf("after an hour %d grants are left, want 4", granted)
	}
	if granted, waited, refused := total(l.Summary(at(500, 0), nil)); granted+waited+refused != 0 {
		t.Errorf("much later there are %d grants, %d waits, %d refusals", granted, waited, refused)
	}
	l.Granted(at(60, 1), 8) // where the first minute was
	if granted, _, _ := total(l.Summary(at(60, 1), nil)); granted != 12 {
		t.Errorf("an hour later there are %d grants, want 12", granted)
	}
}

func TestResources(t *testing.T) {
	var l activity.Log
	l.Found(at(0, 0), "gone", time.Hour)
	l.Ended(at(0, 0), "gone", time.Hour)
	l.Found(at(5, 0), "often", time.Second)
	l.Found(at(20, 0), "often", 2*time.Second)
	l.Found(at(20, 0), "long", 4*time.Second)
	l.Found(at(20, 0), "refused", 0)
	l.Found(at(20, 0), "refused", 0)
	l.Found(at(20, 0), "briefly", 0)
	l.Ended(at(5, 0), "often", 3*time.Second)
	l.Ended(at(20, 0), "often", 2*time.Second)
	l.Ended(at(20, 0), "long", 9*time.Second)
	l.Ended(at(20, 0), "long", 8*time.Second)
	s := l.Summary(at(60, 0), nil)
	if want := []activity.Contended{{"long", 1, 4 * time.Second}, {"often", 2, 3 * time.Second}, {"refused", 2, 0}, {"briefly", 1, 0}}; !reflect.DeepEqual(s.Contended, want) {
		t.Errorf("contended are %v, want %v", s.Contended, want)
	}
	if want := []activity.Held{{"long", 9 * time.Second}, {"often", 3 * time.Second}}; !reflect.DeepEqual(s.Held, want) {
		t.Errorf("held are %v, want %v", s.Held, want)
	}
	s = l.Summary(at(60, 0), func(resource string) bool { return strings.HasPrefix(resource, "o") })
	if len(s.Contended) != 1 || len(s.Held) != 1 {
		t.Errorf("of those that may be seen: %v, %v", s.Contended, s.Held)
	}
}

// Any number of resources leaves those that were waited for and held longest.
func TestBounded(t *testing.T) {
	var l activity.Log
	const many = 10_000
	for i := range many {
		l.Found(at(1, 0), fmt.Sprint("wide/", i), time.Duration(i))
		l.Ended(at(1, 0), fmt.Sprint("wide/", i), time.Duration((i*7919)%many))
	}
	s := l.Summary(at(2, 0), nil)
	if len(s.Contended) != 20 || len(s.Held) != 20 {
		t.Fatalf("%d contended and %d held", len(s.Contended), len(s.Held))
	}
	for i := range 20 {
		if s.Contended[i].Waited != time.Duration(many-1-i) || s.Held[i].For != time.Duration(many-1-i) {
			t.Errorf("place %d has %v and %v", i, s.Contended[i], s.Held[i])
		}
	}
	if kept := l.Kept(); kept > 250 {
		t.Errorf("%d resources are kept", kept)
	}
}
