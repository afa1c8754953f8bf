package nodetest

import (
	"context"
	"slices"
	"strings"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// oddNames are resources that a careless encoding confuses with each other, with its own keys, or with a
// pattern.
func oddNames() []string {
	return []string{
		"a", " ", "  ", "a b", " a", "a ", "A", "l:a", "c:a", "i:a", "q:a", "s:a", "fencelock", "node_locks", "#", "n", "0",
		"*", "a*", "**", "?", "a?", "[a]", "[^a]", "[a-z]", "[", "]", `\`, `\*`, `a\`, `\\`, "{a}", "a{b}c",
		"a/b", "a//b", "/a", "a|b", "a,b", "a;b", "a:b", "a=b", "-", "=", ".", ",", "%", "%s", "%00", `"`, `'`, "$1",
		"\u00fc", "u\u0308", "日本語", "🔒", "\u202e", "nil", "false", "-1",
		"a\x00", "a\x00b", "\x00", "a\x1fb", "a\nb", "a\r\nb", "\xff", "\xff\xff",
		strings.Repeat("x", lockcore.MaxResourceBytes), strings.Repeat("x", lockcore.MaxResourceBytes-1),
		strings.Repeat("🔒", lockcore.MaxResourceBytes/4),
	}
}

func namesDiffer(s *suite) {
	for i, resource := range oddNames() {
		op := acquire(resource, "L1")
		if r := s.do(op); r.Outcome != node.Granted || r.Existing {
			s.Fatalf("%q (%d): %+v", resource, i, r)
		}
	}
	for i, resource := range oddNames() {
		if r := s.do(read(resource)); r.Outcome != node.Granted || r.Owner != "L1" {
			s.Fatalf("%q (%d): %+v", resource, i, r)
		}
	}
	counters, err := s.Node.Counters(s.Context(), s.epoch, oddNames())
	s.must(err)
	for i, resource := range oddNames() {
		if r := s.do(retract(resource, "L1")); r.Outcome != node.Granted || r.Grant != counters[i] {
			s.Fatalf("%q (%d): %+v, counter %d", resource, i, r, counters[i])
		}
	}
}

func namesAreListed(s *suite) {
	for _, resource := range oddNames() {
		s.do(acquire(resource, "L1"))
	}
	want := slices.Sorted(slices.Values(oddNames()))
	if got := s.surveyed(); !slices.Equal(got, want) {
		s.Errorf("surveyed %q, want %q", got, want)
	}
	if got := s.scanned("", 3); !slices.Equal(got, want) {
		s.Errorf("scanned %q, want %q", got, want)
	}
}

func prefixIsLiteral(s *suite) {
	for _, resource := range oddNames() {
		s.do(acquire(resource, "L1"))
	}
	for _, prefix := range append(oddNames(), "x", "xx", "l:", "no such") {
		var want []string
		for _, resource := range oddNames() {
			if strings.HasPrefix(resource, prefix) {
				want = append(want, resource)
			}
		}
		slices.Sort(want)
		if got := s.scanned(prefix, 1000); !slices.Equal(got, want) {
			s.Errorf("prefix %q: %q, want %q", prefix, got, want)
		}
	}
}

// surveyed lists the resources of a survey, sorted.
func (s *suite) surveyed() (resources []string) {
	s.Helper()
	locks, err := surveyAll(s.Context(), s.Node, s.epoch)
	s.must(err)
	for _, lock := range locks {
		resources = append(resources, lock.Resource)
	}
	slices.Sort(resources)
	return slices.Compact(resources)
}

func (s *suite) scanned(prefix string, limit int) []string {
	s.Helper()
	resources, err := scanAll(s.Context(), s.Node, prefix, limit)
	s.must(err)
	return resources
}

// surveyAll lists all locks; a lock may come twice.
func surveyAll(ctx context.Context, n node.Reader, epoch node.Epoch) (all []node.CarriedLock, err error) {
	for cursor := ""; ; {
		locks, next, err := n.Survey(ctx, epoch, cursor)
		if err != nil {
			return nil, err
		}
		all = append(all, locks...)
		if cursor = next; cursor == "" {
			return all, nil
		}
	}
}

// scanAll lists all locked resources with the prefix, sorted, each once.
func scanAll(ctx context.Context, n node.Reader, prefix string, limit int) (all []string, err error) {
	for cursor := ""; ; {
		resources, next, err := n.Scan(ctx, prefix, cursor, limit)
		if err != nil {
			return nil, err
		}
		all = append(all, resources...)
		if cursor = next; cursor == "" {
			slices.Sort(all)
			return slices.Compact(all), nil
		}
	}
}
