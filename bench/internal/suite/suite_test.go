package suite

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

func planned(opts Options) (total time.Duration, steps []step) {
	opts.Log = io.Discard
	steps = New(opts).plan()
	for _, s := range steps {
		total += s.cost
	}
	return total, steps
}

// By plan, the forms stay within what is promised of them.
func TestPlansAreBounded(t *testing.T) {
	if total, _ := planned(Options{Quick: true}); total > 2*time.Minute {
		t.Errorf("the quick form takes %s", total)
	}
	if total, _ := planned(Options{}); total > 15*time.Minute {
		t.Errorf("the full form takes %s", total)
	}
}

func TestOnly(t *testing.T) {
	_, steps := planned(Options{Only: []string{"uncontended"}})
	for _, s := range steps[1:] {
		if !strings.HasPrefix(s.label, "uncontended · ") {
			t.Errorf("also planned: %s", s.label)
		}
	}
	if len(steps) == 1 {
		t.Errorf("%d steps", len(steps))
	}
}

func TestRoundsAreInterleaved(t *testing.T) {
	var order []string
	interleave(2, []string{"a", "b", "c"}, func(p string, _ int) step {
		order = append(order, p)
		return step{}
	})
	if want := []string{"a", "b", "c", "a", "b", "c"}; !slices.Equal(order, want) {
		t.Errorf("got %v", order)
	}
}

func TestPerformGoesOnAfterAFailure(t *testing.T) {
	var log bytes.Buffer
	s := New(Options{Log: &log})
	broken, done := errors.New("broken"), 0
	fail := func(context.Context) error { return broken }
	count := func(context.Context) error { done++; return nil }
	if err := s.perform(t.Context(), []step{{label: "one", do: fail}, {label: "two", do: count}}); err != nil || done != 1 {
		t.Errorf("%v, %d done", err, done)
	}
	if len(s.set.Notes) != 1 || s.set.Notes[0] != "one failed: broken" {
		t.Errorf("notes: %v", s.set.Notes)
	}
	err := s.perform(t.Context(), []step{{label: "vital", do: fail, vital: true}, {label: "two", do: count}})
	if !errors.Is(err, broken) || done != 1 {
		t.Errorf("%v, %d done", err, done)
	}
}

func TestPerformKeepsToItsBudget(t *testing.T) {
	s := New(Options{Log: io.Discard, Budget: time.Nanosecond})
	done := false
	if err := s.perform(t.Context(), []step{{label: "late", do: func(context.Context) error { done = true; return nil }}}); err != nil || done {
		t.Errorf("%v, done %v", err, done)
	}
	if len(s.set.Notes) != 1 || s.set.Notes[0] != "out of time, so not all was measured of: late" {
		t.Errorf("notes: %v", s.set.Notes)
	}
}

type busy struct{ used time.Duration }

func (b *busy) CPU() time.Duration { return b.used }

// What is not counted as ours would make a quiet machine look noisy.
func TestEveryServerIsCountedOnce(t *testing.T) {
	redis, etcd, own, bare := &busy{1}, &busy{10}, &busy{100}, &busy{1000}
	b := &bench{contenders: map[string]contender{
		"library": {store: servers{redis}}, "http": {service: servers{own}, store: servers{redis}},
		"etcd": {service: servers{etcd}}, "http-etcd": {service: servers{own}, store: servers{etcd}},
		"bare": {service: servers{bare}},
	}}
	if got := b.CPU(); got != 1111 {
		t.Errorf("%d, want 1111", got)
	}
}

func TestKernelIsANumber(t *testing.T) {
	if got := kernel("6.1.0-13-amd64\n"); got != "6.1.0" {
		t.Errorf("got %q", got)
	}
}
