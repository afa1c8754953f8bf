package pgstore

import (
	"cmp"
	"slices"

	"github.com/fencelock/fencelock/storage/overlay"
)

// known is what a transaction has read: living rows, and keys that are known to be absent.
type known struct {
	rows   map[string]overlay.Row
	absent map[string]struct{}
	spans  []span // in the order of from
}

// span is a part of the keys that is known completely: from <= key < upto.
type span struct {
	from, upto string
	keys       []string // in order
}

func newKnown() *known {
	return &known{rows: make(map[string]overlay.Row), absent: make(map[string]struct{})}
}

// Get implements overlay.Rows.
func (k *known) Get(key string) (row *overlay.Row, isKnown bool) {
	if r, there := k.rows[key]; there {
		return &r, true
	}
	_, none := k.absent[key]
	return nil, none
}

// add adds a span. Of two spans with the same beginning, the longer one stays.
func (k *known) add(s span) {
	at, found := slices.BinarySearchFunc(k.spans, s.from, func(s span, from string) int { return cmp.Compare(s.from, from) })
	switch {
	case !found:
		k.spans = slices.Insert(k.spans, at, s)
	case k.spans[at].upto < s.upto:
		k.spans[at] = s
	}
}

// Next implements overlay.Rows.
func (k *known) Next(at, to string) (key, bound string) {
	for at < to {
		i, found := slices.BinarySearchFunc(k.spans, at, func(s span, from string) int { return cmp.Compare(s.from, from) })
		if !found {
			i--
		}
		if i < 0 || k.spans[i].upto <= at {
			return "", at
		}
		s := &k.spans[i]
		if j, _ := slices.BinarySearch(s.keys, at); j < len(s.keys) {
			if s.keys[j] < to {
				return s.keys[j], to
			}
			return "", to
		}
		at = s.upto
	}
	return "", to
}
