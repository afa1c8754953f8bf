package sets_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/fencelock/fencelock/lockcore"
)

// readable is what a caller may see in these tests.
func readable(resource string) bool { return strings.HasPrefix(resource, "x/mine") }

// walk returns the resources of each page, to the last page.
func walk(t *testing.T, l *locker, req lockcore.ListRequest) (pages [][]string) {
	t.Helper()
	for {
		page, err := l.List(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, lock := range page.Locks {
			names = append(names, lock.Resource)
		}
		pages = append(pages, names)
		if req.Cursor = page.NextCursor; req.Cursor == "" {
			return pages
		}
	}
}

// A caller that may see a part of a list gets the same pages however many resources are hidden, and wherever they
// are. The time is virtual: a page whose search takes longer than listBudget is short.
func TestHiddenResourcesAreHiddenInEveryWay(t *testing.T) {
	names := func(t *testing.T, l *locker, resources ...string) {
		t.Helper()
		for _, resource := range resources {
			if _, err := l.Acquire(t.Context(), lockcore.Request{Resource: resource}); err != nil {
				t.Fatal(err)
			}
		}
	}
	mine := []string{"x/mine1", "x/mine2", "x/mine3", "x/mine4"}
	for _, hidden := range [][]string{{}, {"x/a"}, {"x/n"}, {"x/mimi", "x/mine", "x/z"}, {"x/a", "x/b", "x/n", "x/o", "x/p", "x/q"}} {
		hidden = slices.DeleteFunc(hidden, readable)
		for _, nodes := range []int{1, 3} {
			t.Run(fmt.Sprint(hidden, nodes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					alone, crowded := serving(t, "alone", nodes), serving(t, "crowded", nodes)
					names(t, alone, mine...)
					names(t, crowded, append(slices.Clone(mine), hidden...)...)
					samePages(t, alone, crowded)
				})
			})
		}
	}
}

func samePages(t *testing.T, alone, crowded *locker) {
	t.Helper()
	for _, prefix := range []string{"", "x/", "x/mine", "x/a", "x/z", "y"} {
		for limit := 1; limit <= 6; limit++ {
			req := lockcore.ListRequest{Caller: lockcore.Everyone, Prefix: prefix, Limit: limit, Show: readable}
			if got, want := walk(t, crowded, req), walk(t, alone, req); !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("prefix %q, limit %d: pages %v, and %v where nothing is hidden", prefix, limit, got, want)
			}
		}
	}
}

// A cursor reveals nothing, and does not work for other callers or other lists.
func TestCursorsAreOpaque(t *testing.T) {
	l := serving(t, "own", 3)
	for _, resource := range []string{"x/a-very-long-name-to-be-seen-in-a-cursor", "x/b", "x/c"} {
		if _, err := l.Acquire(t.Context(), lockcore.Request{Resource: resource}); err != nil {
			t.Fatal(err)
		}
	}
	req := lockcore.ListRequest{Caller: lockcore.CallerNamed("alice"), Prefix: "x/", Limit: 1}
	first, err := l.List(t.Context(), req)
	if err != nil || first.NextCursor == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	req.Cursor = first.NextCursor
	second, err := l.List(t.Context(), req)
	if err != nil || len(second.NextCursor) != len(first.NextCursor) || second.NextCursor == first.NextCursor {
		t.Errorf("%+v after %+v: %v", second, first, err)
	}
	bad := new(lockcore.FieldError)
	for name, list := range map[string]func() error{
		"another caller's": func() error {
			r := req
			r.Caller = lockcore.CallerNamed("bob")
			_, err := l.List(t.Context(), r)
			return err
		},
		"another prefix":  func() error { r := req; r.Prefix = "x"; _, err := l.List(t.Context(), r); return err },
		"another cluster": func() error { _, err := serving(t, "other", 3).List(t.Context(), req); return err },
		"edited":          func() error { r := req; r.Cursor = flipped(r.Cursor); _, err := l.List(t.Context(), r); return err },
	} {
		if err := list(); !errors.As(err, &bad) || bad.Field != "cursor" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// flipped returns the text with another first letter.
func flipped(text string) string {
	if text[0] == 'A' {
		return "B" + text[1:]
	}
	return "A" + text[1:]
}
