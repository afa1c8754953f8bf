package events

import "testing"

// An id leads back to its event, and two ids of one event have nothing in common
// that a reader could compare or count.
func TestIDsAreOpaque(t *testing.T) {
	own, other := newIDs(), newIDs()
	seen := map[string]bool{}
	for number := range uint64(1000) {
		for range 3 {
			id := own.seal(number)
			if seen[id] || seen[id[:11]] || seen[id[11:]] {
				t.Fatalf("id %s, or half of it, came before", id)
			}
			seen[id], seen[id[:11]], seen[id[11:]] = true, true, true
			if got, ok := own.open(id); !ok || got != number {
				t.Fatalf("the id of %d is that of %d, %t", number, got, ok)
			}
			if got, ok := other.open(id); ok && got < 1<<32 {
				t.Errorf("another server takes the id for its own number %d", got)
			}
		}
	}
	for _, id := range []string{"", "2f9k1c-17", own.seal(1)[1:], own.seal(1) + "A"} {
		if _, ok := own.open(id); ok {
			t.Errorf("%q is taken for an id", id)
		}
	}
}
