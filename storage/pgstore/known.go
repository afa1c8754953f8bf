package pgstore

import (
	"cmp"
	"math"
	"slices"
)

// forGood is the end of a row that has none.
const forGood = math.MaxInt64

// stored is a row as the table has it. Ends are Unix microseconds.
type stored struct {
	value []byte
	ends  int64
}

// known is what a transaction has read: living rows, and which there are not.
type known struct {
	rows   map[string]stored
	absent map[string]struct{}
	spans  []span // in the order of from
}

// span is a part of the keys that is known in full: from <= key < upto.
type span struct {
	from, upto string
	keys       []string // in order
}

func newKnown() *known {
	return &known{rows: make(map[string]stored), absent: make(map[string]struct{})}
}

// get returns a row; it is nil if there is none. It may not be known yet.
func (k *known) get(key string) (row *stored, isKnown bool) {
	if r, there := k.rows[key]; there {
		return &r, true
	}
	_, none := k.absent[key]
	return nil, none
}

// add adds a span. Of two that begin at the same key the longer one stays.
func (k *known) add(s span) {
	at, found := slices.BinarySearchFunc(k.spans, s.from, func(s span, from string) int { return cmp.Compare(s.from, from) })
	switch {
	case !found:
		k.spans = slices.Insert(k.spans, at, s)
	case k.spans[at].upto < s.upto:
		k.spans[at] = s
	}
}

// next is the first key with at <= key < to; "" if there is none. It is known up to
// the bound, which is to if there is a key or none.
func (k *known) next(at, to string) (key, bound string) {
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
