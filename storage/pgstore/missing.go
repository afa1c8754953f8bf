package pgstore

import (
	"cmp"
	"slices"

	"github.com/fencelock/fencelock/storage/overlay"
)

// firstFetch is how many rows of a range are read at least; each further round trip of
// a transaction reads sixteen times as many, up to mostFetched.
const (
	firstFetch  = 4
	mostFetched = 1 << 20
)

// size is how many rows of a range are read in the given round trip.
func size(limit, round int) int {
	return min(max(limit, firstFetch<<min(4*round, 20)), mostFetched)
}

// sortedKeys returns the keys in order, so that all transactions lock rows in the same order.
func sortedKeys(w *overlay.Missing) []string {
	keys := make([]string, 0, len(w.Keys))
	for key := range w.Keys {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// distinct removes duplicates.
func distinctRanges(w *overlay.Missing) []overlay.Range {
	slices.SortFunc(w.Ranges, func(a, b overlay.Range) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(b.Limit, a.Limit))
	})
	return slices.CompactFunc(w.Ranges, func(a, b overlay.Range) bool { return a.From == b.From && a.To == b.To })
}
