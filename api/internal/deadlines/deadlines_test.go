package deadlines_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fencelock/fencelock/api/internal/deadlines"
)

type deadline struct {
	value int
	at    time.Time
}

// TestMap holds a Map against a plain map whose deadlines are looked through.
func TestMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m deadlines.Map[int, int]
		naive := map[int]deadline{}
		begin := time.Unix(0, 0)
		keys, values := rapid.IntRange(0, 20), rapid.IntRange(0, 1000)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				key, value, at := keys.Draw(t, "key"), values.Draw(t, "value"), begin.Add(time.Duration(values.Draw(t, "at")))
				m.Put(key, value, at)
				naive[key] = deadline{value, at}
			},
			"delete": func(t *rapid.T) {
				key := keys.Draw(t, "key")
				value, ok := m.Delete(key)
				was, there := naive[key]
				delete(naive, key)
				if ok != there || value != was.value {
					t.Fatalf("deleted %d %t, want %d %t", value, ok, was.value, there)
				}
			},
			"take what is due": func(t *rapid.T) {
				now := begin.Add(time.Duration(values.Draw(t, "now")))
				last := begin
				for key, value := range m.TakeDue(now) {
					want, there := naive[key]
					delete(naive, key)
					if !there || value != want.value || want.at.After(now) || want.at.Before(last) {
						t.Fatalf("took %d: %d at %s after %s, want %+v %t", key, value, now, last, want, there)
					}
					last = want.at
				}
				for key, left := range naive {
					if !left.at.After(now) {
						t.Fatalf("%d was due and is left", key)
					}
				}
			},
			"": func(t *rapid.T) {
				if m.Len() != len(naive) {
					t.Fatalf("%d entries, want %d", m.Len(), len(naive))
				}
				for key, want := range naive {
					if value, ok := m.Get(key); !ok || value != want.value {
						t.Fatalf("%d is %d %t, want %d", key, value, ok, want.value)
					}
				}
			},
		})
	})
}
